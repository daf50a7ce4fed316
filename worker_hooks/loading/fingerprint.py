"""A fingerprint of a data set, by which workers find out that theirs differ. Pure, but for the global generators.

A worker fetches a few samples several times over. A field that was the same every time takes part in the comparison;
one that was not is random on purpose (augmentation). Before every fetch the global generators of torch, numpy and
Python get the same seed everywhere; afterwards they are as before.

Floats may differ by TOLERANCE, because decoders of images and processors round differently; all else must be the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker_hooks.loading.data_set import leaves
from worker_hooks.loading.global_generators import generators_kept

SAMPLES = 4  # evenly spread, from the first to the last
FIELDS = 16  # that are compared; of further ones only name and type
TOLERANCE = 1e-3  # of floats, relative to the norm of the field
_COMPARED = 1 << 16  # most values of a field that are compared
_HEAD = 3  # refused, length, structure
ROW = _HEAD + 3 * FIELDS  # numbers per worker


class _Field(NamedTuple):
    """A field of the samples that were fetched."""

    kind: str
    digest: int  # of 48 bits, which float64 holds exactly
    value: float  # what is compared
    tolerance: float


class Fingerprint(NamedTuple):
    """What one worker knows of its data set. Without fields: the worker refuses the data set."""

    length: int
    fetches: Sequence[dict[str, _Field]]

    @property
    def names(self) -> list[str]:
        return list(self.fetches[0]) if self.fetches else []

    def row(self) -> NDArray[np.float64]:
        """The numbers that are compared, shape (ROW,); 0 in place of what is not the same in all fetches."""
        row = np.zeros(ROW)
        row[:2] = float(not self.fetches), self.length
        structures = {_digest(repr([(name, field.kind) for name, field in one.items()])) for one in self.fetches}
        if len(structures) != 1:
            return row
        row[2] = structures.pop()
        for place, name in enumerate(self.names[:FIELDS]):
            fields = [one[name] for one in self.fetches]
            if len({field.digest for field in fields}) == 1 and not np.isnan(fields[0].value):
                row[_HEAD + 3 * place :][:3] = 1, fields[0].value, fields[0].tolerance
        return row


def fingerprint(length: int, fetch: Callable[[NDArray[np.int64]], Any], times: int) -> Fingerprint:
    """Fetch the same few samples of a data set of this length `times` times."""
    if not length:
        return Fingerprint(0, [{}])
    numbers = np.unique(np.linspace(0, length - 1, SAMPLES).astype(np.int64))
    fetches = []
    with generators_kept() as seed:
        for _ in range(times):
            seed(0)
            fetches.append({name: _field(leaf) for name, leaf in leaves(fetch(numbers))})
    return Fingerprint(length, fetches)


def look_of(sample: Any) -> tuple[float, float, float, float]:
    """What one sample looks like, exact in float32: a code of all that must be equal, a value of its floats, how much
    this may differ, and 0. NaN counts as 0."""
    code, value, tolerance = hashlib.sha256(), 0.0, 0.0
    for name, leaf in leaves(sample):
        field = _field(leaf)
        code.update(repr((name, field.kind)).encode())
        if field.tolerance or field.kind.startswith("float"):
            value, tolerance = value + field.value, tolerance + field.tolerance
        else:
            code.update(repr(field.digest).encode())
    return int.from_bytes(code.digest()[:3], "big"), value, tolerance, 0.0


def difference(rows: NDArray[np.float64], names: Sequence[str]) -> str:
    """In what the data sets of workers differ; empty if they agree.

    Args:
        rows: `Fingerprint.row` of every worker, shape (workers, ROW).
        names: of the fields, on this worker.
    """
    if len(set(rows[:, 1])) > 1:
        return _by_worker([f"{length:.0f} samples" for length in rows[:, 1]])
    structures = [structure for structure in rows[:, 2] if structure]
    if len(set(structures)) > 1:
        others = [rank for rank, structure in enumerate(rows[:, 2]) if structure not in (0, structures[0])]
        return f"samples have other fields or types on {_workers(others)}"
    for place in range(FIELDS):
        known, values, tolerances = rows[:, _HEAD + 3 * place :][:, :3].T
        ranks = np.flatnonzero(known)
        if len(ranks) < 2:
            continue
        apart = np.abs(values - values[ranks[0]]) > np.maximum(tolerances, tolerances[ranks[0]])
        if other := [int(rank) for rank in ranks if apart[rank]]:
            name = names[place] if place < len(names) else ""
            return f"sample{name} is not the same on {_workers([int(ranks[0]), *other])} for the same sample number"
    return ""


def _by_worker(texts: Sequence[str]) -> str:
    return ", ".join(
        f"{text} on {_workers([rank for rank, found in enumerate(texts) if found == text])}"
        for text in dict.fromkeys(texts)
    )


def _workers(ranks: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(map(str, ranks[:most])) + (", ..." if len(ranks) > most else "")
    return f"worker{'s' if len(ranks) > 1 else ''} {shown}"


def _field(leaf: Any) -> _Field:
    array = _array(leaf)
    if array is None or array.dtype.hasobject:
        return _Field(type(leaf).__name__, 0, np.nan, 0.0)  # cannot be compared
    digest = _digest(f"{array.shape}", np.ascontiguousarray(array).tobytes())
    if array.dtype.kind not in "fc":
        kind = "text" if array.dtype.kind in "SU" else str(array.dtype)
        return _Field(kind, digest, float(digest), 0.0)
    flat = array.ravel()[:: -(-array.size // _COMPARED) or 1]
    flat = np.nan_to_num((np.abs(flat) if array.dtype.kind == "c" else flat).astype(np.float64), posinf=1, neginf=-1)
    projected = float(np.random.default_rng(0).standard_normal(flat.size) @ flat)
    return _Field(str(array.dtype), digest, projected, TOLERANCE * float(np.linalg.norm(flat)))


def _array(leaf: Any) -> NDArray[Any] | None:
    """The values of a leaf of a batch: torch, MXNet, numpy, numbers, strings; none where that is impossible."""
    try:
        if hasattr(leaf, "asnumpy"):
            leaf = leaf.asnumpy()
        elif hasattr(leaf, "detach"):
            leaf = leaf.detach().cpu()
            leaf = leaf.float() if str(leaf.dtype) == "torch.bfloat16" else leaf
        return np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError):
        return None


def _digest(text: str, content: bytes = b"") -> int:
    return int.from_bytes(hashlib.sha256(text.encode() + content).digest()[:6], "big")
