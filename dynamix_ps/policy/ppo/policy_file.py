"""A policy in one `.npz`: weights, Adam, normalisers, the meaning of inputs and outputs, provenance and a hash.

Arrays of a network `n`: `n/actor.0.weight` and so on; `n/adam.mean` and `n/adam.square` (one vector each, all weights
in that order), absent after an export for inference; `n/normaliser.count`, `.mean` and `.spread`, absent if there is no
normaliser. There is no pickle. `about` is JSON, in which `kind` is the action space; `sha256` is over everything else.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.bounded_json import value_in
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo.actor_critic import AdamState, Weights
from dynamix_ps.policy.ppo.network import Normaliser, Params, Shape

FORMAT = "dynamix-ppo"
VERSION = 2

_LARGEST_BYTES = 256 << 20  # unpacked; a network of the largest width takes 30 MB with what Adam keeps
_MOST_ARRAYS = 1000
_Arrays = dict[str, NDArray[Any]]
_NORMALISER = ("count", "mean", "spread")


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy's inputs and outputs mean, per network; policies are compatible only if these are equal."""

    space: str  # the action space, e.g. "structured", "paper"
    features: Mapping[str, tuple[str, ...]]
    actions: Mapping[str, tuple[float | int | str, ...]]
    hidden: int


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """Everything needed to continue. `provenance` tells people where the weights come from; JSON values."""

    networks: Mapping[str, Weights]
    spec: PolicySpec
    provenance: Mapping[str, Any]


def save_policy(file: Path, stored: StoredPolicy) -> None:
    """Write atomically: a reader sees the old file or the new one, never a part. Raises OSError."""
    arrays: _Arrays = {}
    for network, weights in stored.networks.items():
        arrays |= {f"{network}/{name}": value for name, value in _arrays_of(weights).items()}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "kind": stored.spec.space,
        "features": dict(stored.spec.features),
        "actions": dict(stored.spec.actions),
        "hidden": stored.spec.hidden,
        "adam_steps": {name: weights.adam.step for name, weights in stored.networks.items() if weights.adam},
        "provenance": dict(stored.provenance),
    }
    arrays["about"] = np.array(json.dumps(about, sort_keys=True))
    arrays["sha256"] = np.array(_digest(arrays))
    content = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(content, **named)
    _replace(file, content.getvalue())


def load_policy(file: Path, expected: PolicySpec | None) -> StoredPolicy:
    """Read and check a policy file.

    Args:
        expected: the spec that it must have; None: any spec, to inspect the file.

    Raises:
        PolicyError: the file is missing, truncated, damaged, no policy, of another version or for another spec.
    """
    arrays = _read(file)
    about = _about(file, arrays)
    digest = str(arrays.get("sha256", "none"))
    if digest != _digest(arrays):
        raise PolicyError(f"{file}: damaged: expected sha256 {digest}, found {_digest(arrays)}; use another copy")
    try:
        spec = PolicySpec(about["kind"], _tuples(about["features"]), _tuples(about["actions"]), int(about["hidden"]))
        if expected is not None:
            _check_spec(file, spec, expected)
        steps = about["adam_steps"]
        networks = {name: _weights(file, name, _group(arrays, name), spec, steps.get(name)) for name in spec.features}
        return StoredPolicy(networks, spec, dict(about["provenance"]))
    except (KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise PolicyError(f"{file}: incomplete: {error} is missing or malformed; use another copy") from error


def _arrays_of(weights: Weights) -> _Arrays:
    arrays: _Arrays = dict(weights.params.named())
    if weights.adam is not None:
        arrays |= {"adam.mean": weights.adam.mean, "adam.square": weights.adam.square}
    if weights.normaliser is not None:
        arrays |= {f"normaliser.{part}": getattr(weights.normaliser, part) for part in _NORMALISER}
    return arrays


def _weights(file: Path, network: str, arrays: _Arrays, spec: PolicySpec, adam_step: int | None) -> Weights:
    """One network from its arrays. Raises PolicyError, KeyError, TypeError, ValueError."""
    n_features, n_actions = len(spec.features[network]), len(spec.actions[network])
    normalised = "normaliser.count" in arrays
    shape = Shape(2 * n_features if normalised else n_features, spec.hidden, n_actions)
    params = Params(shape, np.empty(shape.size, dtype=np.float32))
    adam = (
        None if adam_step is None else AdamState(int(adam_step), np.empty_like(params.flat), np.empty_like(params.flat))
    )
    normaliser = Normaliser.empty(n_features) if normalised else None
    wanted = _arrays_of(Weights(params, adam, normaliser))
    for name, place in wanted.items():
        found = arrays[name]
        if found.shape != place.shape or found.dtype != place.dtype:
            raise PolicyError(
                f"{file}: {network}/{name} does not fit the network: found {found.dtype} {found.shape}, "
                f"expected {place.dtype} {place.shape}; use another copy"
            )
        if not np.isfinite(found).all():
            raise PolicyError(
                f"{file}: {network}/{name} has a NaN or infinite number, expected finite; use another copy"
            )
        place[...] = found
    return Weights(params, adam, normaliser)


def _read(file: Path) -> _Arrays:
    try:
        _check_size(file)
        with np.load(file, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError, KeyError, MemoryError) as error:
        raise PolicyError(f"{file}: not a policy file, or cut off ({error}); expected an .npz of {FORMAT}") from error
    except OSError as error:
        raise PolicyError(f"{file}: cannot be read ({error}); name a policy file in policy.ppo.file") from error


def _check_size(file: Path) -> None:
    """Before anything is unpacked: a small file may be packed from endless zeros. Nothing larger than told is read."""
    with zipfile.ZipFile(file) as archive:
        size, count = sum(part.file_size for part in archive.infolist()), len(archive.infolist())
    if size > _LARGEST_BYTES or count > _MOST_ARRAYS:
        raise PolicyError(
            f"{file}: holds {count:,} arrays of {size:,} bytes, expected a policy with at most {_MOST_ARRAYS:,} arrays "
            f"of {_LARGEST_BYTES:,} bytes; use another file"
        )


def _about(file: Path, arrays: _Arrays) -> dict[str, Any]:
    try:
        about = value_in(str(arrays["about"]))
        found = (about["format"], about["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"{file}: found no description of a policy in it, expected {FORMAT} {VERSION}") from error
    if found != (FORMAT, VERSION):
        raise PolicyError(f"{file}: found {found[0]} version {found[1]}, expected {FORMAT} version {VERSION}")
    return dict(about)


def _check_spec(file: Path, found: PolicySpec, expected: PolicySpec) -> None:
    for name in ("space", "features", "actions", "hidden"):
        if getattr(found, name) != getattr(expected, name):
            raise PolicyError(
                f"{file}: {name}: found {getattr(found, name)}, expected {getattr(expected, name)}; "
                "it was made for other inputs or actions"
            )


def _tuples(lists: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(values) for name, values in lists.items()}


def _group(arrays: _Arrays, network: str) -> _Arrays:
    prefix = network + "/"
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _digest(arrays: _Arrays) -> str:
    """sha256 over names, types, shapes and bytes of all arrays except the hash itself."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        if name != "sha256":
            value = np.ascontiguousarray(arrays[name])
            digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
            digest.update(value.tobytes())
    return digest.hexdigest()


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
