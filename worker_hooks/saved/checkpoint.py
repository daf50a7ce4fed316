"""Checkpoints on disk: complete and unchanged, or refused. The framework decides on their content (torch/state.py,
mxnet/state.py).

A file is the framework's own format with one line at its end, `sha256 <hex>`, the checksum of everything before it.
torch.load and numpy.load read such files as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import itertools
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, get_args

from dynamix_ps.config.schema import Unit
from dynamix_ps.errors import CheckpointError
from dynamix_ps.messages import Plan
from worker_hooks.exchange.units import Seen
from worker_hooks.planning.learning_rate import SMALLEST_GUARD, Noise
from worker_hooks.planning.plan_switch import VERSION_BITS
from worker_hooks.sampling.sampler import Cursor, Range
from worker_hooks.sampling.shard_list import MOST_COUNTED, Piece
from worker_hooks.saved.saved_fields import read_list, read_number, read_table, read_whole, read_word

logger = logging.getLogger(__name__)

FORMAT = 2
KEPT = 3  # checkpoints of a run folder
_PARTIAL = ".partial"

_ADDED_LATER = {  # fields that positions of earlier versions lack
    "pass_code": 0,
    "units": [0.0, 0],
    "unit": "samples",
    "left": None,
    "lr_guard": 1.0,
    "reference_batch": 0,
    "pass_batch": 0,
    "epochs_begun": [0],
    "not_trained": 0,
}
_CHECKSUM = re.compile(rb"\nsha256 ([0-9a-f]{64})\n\Z")
_CHECKSUM_BYTES = len("\nsha256 \n") + 64


@dataclass(frozen=True, slots=True)
class ShardsLeft:
    """What is left of a pass over shards."""

    shards: int  # in a pass
    code: int  # of their list
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a training is: with the weights and the optimizer, all that a resume needs, with any number of workers."""

    iteration: int
    cursor: Cursor
    plan: Plan
    seed: int  # of the order of the samples
    epoch_samples: int  # a pass over the data has so many; 0: not known, of a stream
    noise: Noise = (0.0, 0.0)  # of learning_rate.py
    largest_lr: float = 0.0  # the largest learning rate of the script so far
    progress: float | None = 0.0  # part of the training that is done, 0 to 1; none: its end is not known
    pass_code: int = 0  # of the order in this pass, where a sampler of the script has drawn it
    registered: Mapping[str, Any] = field(default_factory=dict)  # states of the objects that the script registered
    units: Seen = (0.0, 0)  # of units.py
    unit: str = "samples"  # of the plan's sizes
    left: ShardsLeft | None = None  # of the pass at hand, where it is over shards
    lr_guard: float = 1.0  # what the guard has left of the learning rate
    reference_batch: int = 0  # the global batch that the learning rate is for; 0: not known
    pass_batch: int = 0  # whose multiples a pass consists of, where a loader drops what remains; 0: not known
    epochs_begun: tuple[int, ...] = ()  # the pass with which each call of `run.epochs()` began
    not_trained: int = 0  # samples of passes that the script has left before their end

    def pack(self) -> dict[str, Any]:
        """The position as plain values, for a checkpoint; states of registered objects as they are."""
        return {
            "iteration": self.iteration,
            "cursor": {**asdict(self.cursor), "owed": [list(one) for one in self.cursor.owed]},
            "plan": {"version": self.plan.version, "batch_sizes": list(self.plan.batch_sizes)},
            "seed": self.seed,
            "epoch_samples": self.epoch_samples,
            "pass_code": self.pass_code,
            "noise": [float(part) for part in self.noise],
            "lr_guard": float(self.lr_guard),
            "reference_batch": self.reference_batch,
            "pass_batch": self.pass_batch,
            "epochs_begun": list(self.epochs_begun),
            "not_trained": self.not_trained,
            "largest_lr": float(self.largest_lr),
            "progress": self.progress,
            "registered": dict(self.registered),
            "units": list(self.units),
            "unit": self.unit,
            "left": None if self.left is None else _pack_left(self.left),
        }

    @classmethod
    def unpack(cls, packed: object) -> Position:
        """The position that `pack` made plain. Raises CheckpointError, which names the first wrong field."""
        if isinstance(packed, dict):
            packed = {**_ADDED_LATER, **packed}
        found = read_table(packed, "position", tuple(cls.__dataclass_fields__))
        epoch_samples = read_whole(found["epoch_samples"], "position.epoch_samples")
        progress = found["progress"]
        variance, signal = read_list(found["noise"], "position.noise", 2)
        units, weighed = read_list(found["units"], "position.units", 2)
        return cls(
            iteration=read_whole(found["iteration"], "position.iteration"),
            cursor=_read_cursor(found["cursor"], epoch_samples),
            plan=_read_plan(found["plan"]),
            seed=read_whole(found["seed"], "position.seed"),
            epoch_samples=epoch_samples,
            pass_code=read_whole(found["pass_code"], "position.pass_code"),
            noise=(read_number(variance, "position.noise[0]"), read_number(signal, "position.noise[1]")),
            lr_guard=read_number(found["lr_guard"], "position.lr_guard", SMALLEST_GUARD, 1.0),
            reference_batch=read_whole(found["reference_batch"], "position.reference_batch"),
            pass_batch=read_whole(found["pass_batch"], "position.pass_batch"),
            epochs_begun=_read_epochs_begun(found["epochs_begun"]),
            not_trained=read_whole(found["not_trained"], "position.not_trained"),
            largest_lr=read_number(found["largest_lr"], "position.largest_lr", 0.0),
            progress=None if progress is None else read_number(progress, "position.progress", 0.0, 1.0),
            registered=_read_registered(found["registered"]),
            units=(read_number(units, "position.units[0]", 0.0), read_whole(weighed, "position.units[1]")),
            unit=read_word(found["unit"], "position.unit", get_args(Unit)),
            left=None if found["left"] is None else _read_left(found["left"]),
        )


def _pack_left(left: ShardsLeft) -> dict[str, Any]:
    return {"shards": left.shards, "code": left.code, "pieces": [list(piece) for piece in left.pieces]}


def _read_left(packed: object) -> ShardsLeft:
    found = read_table(packed, "position.left", ("shards", "code", "pieces"))
    shards, where = read_whole(found["shards"], "position.left.shards", 1), "position.left.pieces"
    pieces = []
    for place, piece in enumerate(read_list(found["pieces"], where)):
        shard, offset = read_list(piece, f"{where}[{place}]", 2)
        shard = read_whole(shard, f"{where}[{place}][0]", 0, shards - 1)
        pieces.append(Piece(shard, read_whole(offset, f"{where}[{place}][1]", 0, MOST_COUNTED)))
    return ShardsLeft(shards, read_whole(found["code"], "position.left.code"), tuple(pieces))


def _read_cursor(packed: object, epoch_samples: int) -> Cursor:
    where = "position.cursor"
    if isinstance(packed, dict):
        packed = {"owed": [], **packed}  # which was added later
    found = read_table(packed, where, ("epoch", "position", "owed"))
    place = Cursor(
        read_whole(found["epoch"], f"{where}.epoch"),
        read_whole(found["position"], f"{where}.position", 0, epoch_samples - 1 if epoch_samples else None),
    )
    owed = []
    for number, one in enumerate(read_list(found["owed"], f"{where}.owed")):
        inside = f"{where}.owed[{number}]"
        epoch, begin, end = read_list(one, inside, 3)
        epoch = read_whole(epoch, f"{inside}[0]", 0, place.epoch)
        end = read_whole(end, f"{inside}[2]", 1, place.position if epoch == place.epoch else epoch_samples)
        owed.append(Range(epoch, read_whole(begin, f"{inside}[1]", 0, end - 1), end))
    try:
        return place.owing(owed)
    except ValueError as error:
        raise CheckpointError(f"{where}.owed: {error}") from error


def _read_epochs_begun(packed: object) -> tuple[int, ...]:
    where, begun = "position.epochs_begun", [0]
    for call, number in enumerate(read_list(packed, where)):
        begun.append(read_whole(number, f"{where}[{call}]", begun[-1]))
    return tuple(begun[1:])


def _read_plan(packed: object) -> Plan:
    if isinstance(packed, dict) and (factor := (packed := dict(packed)).pop("lr_factor", 1.0)) != 1:
        logger.warning(
            "the checkpoint was trained with a factor %s on the learning rate that `lr: decide` of release 0.1 chose; "
            "this release does not use it",
            factor,
        )
    found = read_table(packed, "position.plan", ("version", "batch_sizes"))
    where = "position.plan.batch_sizes"
    sizes = [read_whole(size, f"{where}[{rank}]") for rank, size in enumerate(read_list(found["batch_sizes"], where))]
    if not any(sizes):
        raise CheckpointError(f"{where}: got {sizes}, expected at least one sample per iteration")
    return Plan(read_whole(found["version"], "position.plan.version", 0, 2**VERSION_BITS - 1), tuple(sizes))


def _read_registered(packed: object) -> dict[str, Any]:
    if not isinstance(packed, dict) or not all(isinstance(name, str) for name in packed):
        raise CheckpointError("position.registered: expected a dict with a state under every name")
    return packed


def save_checkpoint(path: Path, state: bytes, kept: int = 1) -> None:
    """Write `state` and its checksum to `path`: a temporary file in the same folder, flushed, then renamed over it.

    With `kept` above 1 the checkpoints before it stay, under the names of `older_checkpoints`. A temporary file whose
    process has ended before it was renamed is removed. Raises OSError, and leaves what was there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_partial(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
    try:
        with os.fdopen(handle, "wb") as out:
            _take(out)
            out.write(state)
            out.write(f"\nsha256 {hashlib.sha256(state).hexdigest()}\n".encode())
            out.flush()
            os.fsync(out.fileno())
            names = [path, *older_checkpoints(path)][:kept]
            for newer, older in reversed(list(itertools.pairwise(names))):
                if newer.exists():
                    os.replace(newer, older)
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _take(file: IO[bytes]) -> bool:
    """Lock a file as long as it is open here. Returns whether nobody else has it, as far as the disk has locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_partial(path: Path) -> None:
    """Remove temporary files of `path` that no process writes; one that is written is locked."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}"):
        with contextlib.suppress(OSError), partial.open("r+b") as file:
            if _take(file):
                partial.unlink()


def older_checkpoints(path: Path) -> list[Path]:
    """Where the checkpoints before `path` are, newest first: for last.pt they are last.1.pt and last.2.pt."""
    return [path.with_name(f"{path.stem}.{number}{path.suffix}") for number in range(1, KEPT)]


def load_checkpoint(path: Path) -> bytes:
    """The state in a checkpoint. Raises CheckpointError, with the path, if it is missing, cut off or changed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint; give the path of a file that run.save() wrote") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    state, end = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    told = _CHECKSUM.match(end)
    if told is None:
        raise CheckpointError(
            f"{path}: not a complete checkpoint: there is no sha256 line at its end; "
            "the file is cut off, or run.save() of this version did not write it"
        )
    found = hashlib.sha256(state).hexdigest()
    if found != told[1].decode():
        raise CheckpointError(f"{path}: the content has sha256 {found}, expected {told[1].decode()}; it is damaged")
    return state


def newest_valid_checkpoint(path: Path, warn: Callable[[str], None]) -> tuple[Path, bytes]:
    """(file, its state) of `path`, or of the newest one before it that is complete and unchanged.

    `warn` gets a sentence if it is not `path`. Raises the error of `path` if there is none.
    """
    try:
        return path, load_checkpoint(path)
    except CheckpointError as error:
        first = error
    for older in older_checkpoints(path):
        try:
            state = load_checkpoint(older)
        except CheckpointError:
            continue
        warn(f"{first}; training goes on from the one before it, {older}")
        return older, state
    raise first


def check_format(found: object) -> None:
    """Raises CheckpointError unless a checkpoint has this format."""
    if found != FORMAT:
        raise CheckpointError(f"checkpoint format {found!r}, expected {FORMAT}; it is of another version")
