"""Checks before a training begins: frameworks, number of workers, settings, data set, trained parameters."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.config.schema import Keep, Unit
from dynamix_ps.data_planes import FRAMEWORKS
from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from dynamix_ps.shares import shared_out
from worker_hooks.exchange.agreement import different_parameters, name_workers
from worker_hooks.loading.batches import Stream
from worker_hooks.loading.data_source import DataSource
from worker_hooks.loading.fingerprint import ROW, Fingerprint, difference, fingerprint
from worker_hooks.saved.checkpoint import Position

if TYPE_CHECKING:
    from worker_hooks.adapter import Adapter
    from worker_hooks.session import Session

ATTACH, BEFORE_ALL, FAILED_BEFORE_ALL = 1, 2, 3  # calls of a script that may come first
_FIRST_KEY = "dynamix.workers"
_NONE = np.empty(0, dtype=np.int64)
FETCHES = (2, 12)  # 12: what is random by one chance in two looks alike on two workers, and differs, once in 4^11 times


def check_workers(
    comm: Comm, framework: str, call: int = ATTACH, on_slow: Callable[[float], None] | None = None
) -> set[int]:
    """Raises TrainingError, on every worker, unless those that began the job are there with `framework`. Collective.

    Call it before anything else is summed: a buffer of gradients here may be something else on another worker. All
    calls that may come first meet here, under one key.

    Args:
        call: in which the script is.
        on_slow: as `Comm.total` has it.

    Returns the calls of all workers. They are the same, but for failures.
    """
    comm.declare(_FIRST_KEY)
    mine = np.zeros((len(FRAMEWORKS), comm.size))
    mine[FRAMEWORKS.index(framework), comm.rank] = call
    workers = comm.total(_FIRST_KEY, mine.ravel(), on_slow).reshape(mine.shape)
    counts = dict(zip(FRAMEWORKS, np.count_nonzero(workers, axis=1).tolist(), strict=True))
    if any(count for name, count in counts.items() if name != framework):
        found = ", ".join(f"{count} with {name}" for name, count in counts.items() if count)
        raise TrainingError(f"workers of one job need one framework, found {found}; start them with one script")
    calls = workers.sum(axis=0).astype(int)
    there, first = set(np.flatnonzero(calls).tolist()), set(range(comm.first_size))
    if there != first:
        changes = [
            f"{name_workers(sorted(ranks))} {did}"
            for ranks, did in ((there - first, "came"), (first - there, "went"))
            if ranks
        ]
        raise TrainingError(
            f"attach() takes the {len(first)} workers that the job began with, and since then {' and '.join(changes)}; "
            "attach all that is trained before anybody comes or goes, or save a checkpoint and start the job again"
        )
    attaching = [rank for rank in sorted(there) if calls[rank] == ATTACH]
    if 0 < len(attaching) < len(there):
        others = [rank for rank in sorted(there) if rank not in attaching]
        raise TrainingError(
            f"the workers are at different places of the script: {name_workers(others)} in before_all(), "
            f"{name_workers(attaching)} in attach(); call before_all() on every worker, outside of any `if`"
        )
    return set(calls[sorted(there)].tolist())


def check_settings(comm: Comm, key: str, settings: Mapping[str, str]) -> None:
    """Raises TrainingError, on every worker, unless all have the same values. Collective.

    Args:
        settings: by key of the cluster file.
    """
    if comm.size == 1:
        return
    compare_settings(dict(enumerate(map(json.loads, comm.gather(key, json.dumps(settings).encode())))))


def compare_settings(told: Mapping[int, Mapping[str, str]]) -> None:
    """Raises TrainingError, which names the keys that differ, unless all workers have the same values.

    Args:
        told: the settings of every worker by key of the cluster file, by rank.
    """
    differing = []
    for name in dict.fromkeys(name for settings in told.values() for name in settings):
        ranks: dict[str, list[int]] = {}
        for rank, settings in told.items():
            ranks.setdefault(settings.get(name, "not used"), []).append(rank)
        if len(ranks) > 1:
            found = ", ".join(f"{value} on {name_workers(those)}" for value, those in ranks.items())
            differing.append(f"{name}: {found}")
    if differing:
        raise TrainingError(
            f"the cluster files of the workers differ in {'; '.join(differing)}; start all workers with the same file"
        )


def looked_at(source: DataSource) -> Fingerprint:
    """What a worker that cannot ask the others knows of its data set. Raises TrainingError if it is unusable."""
    source.check()
    return fingerprint(source.samples_compared, source.fetch, FETCHES[-1])


def check_data_sets(comm: Comm, key: str, source: DataSource) -> Fingerprint:
    """Raises TrainingError, on every worker, unless all have the same data set, of a kind that the hook can use.

    Returns what this worker knows of it.

    Two fetches of a few samples show which fields are random. Where workers seem to differ, more fetches make sure that
    the difference is none by chance: a random field that came out alike twice. Collective.
    """
    comm.declare(key)
    if comm.size == 1:
        source.check()
        return Fingerprint(0, ())
    for times in FETCHES:
        found, refused = Fingerprint(0, ()), None
        try:
            source.check()
            found = fingerprint(source.samples_compared, source.fetch, times)
        except TrainingError as error:
            refused = error
        mine = np.zeros((comm.size, ROW))
        mine[comm.rank] = found.row()
        rows = comm.total(key, mine.ravel()).reshape(comm.size, ROW)[: comm.first_size]
        if refused is not None:
            raise refused
        if rows[:, 0].any():
            rank = int(rows[:, 0].argmax())
            raise TrainingError(f"the data set of worker {rank} is refused; its log says why")
        differing = difference(rows, found.names)
        if not differing:
            return found
    raise TrainingError(
        f"the data sets of the workers differ: {differing}; give every worker the whole data set, in the same order "
        "and made with the same seed: the hook gives each worker its part of every batch"
    )


def of_every_worker(comm: Comm, key: str, number: int) -> tuple[int, ...]:
    """The number that each worker has, in the order of ranks; 0: it is not there. Collective."""
    comm.declare(key)
    mine = np.zeros(comm.size)
    mine[comm.rank] = number
    return tuple(int(each) for each in comm.total(key, mine))


def own_lengths(lengths: Any, source: DataSource, unit: Unit) -> NDArray[np.int64] | None:
    """Tokens of every sample of the data set, int64; none where sizes are in samples. Raises TrainingError."""
    if unit == "samples":
        return None
    found, problem = _whole_numbers(lengths, len(source.dataset))
    if problem:
        raise _no_lengths(unit, problem)
    return found


def _no_lengths(unit: Unit, problem: str) -> TrainingError:
    return TrainingError(
        f"batch.unit is {unit} in the cluster file, so attach() needs lengths=, the tokens of every sample: {problem}"
    )


def agreed_lengths(comm: Comm, key: str, lengths: Any, source: DataSource, unit: Unit) -> NDArray[np.int64] | None:
    """Tokens of every sample of the data set, int64; none where sizes are in samples. Collective.

    Raises TrainingError, on every worker, unless all give the same right numbers.
    """
    if unit == "samples":
        return None
    found, problem = _whole_numbers(lengths, len(source.dataset))
    told = comm.gather(key, (problem or f"{zlib.crc32(found.tobytes()):08x}").encode())
    if problem or any(b" " in one for one in told):
        raise _no_lengths(unit, problem or "another worker got wrong ones")
    if len(set(told)) > 1:
        raise TrainingError(
            "lengths= of attach() differs between workers; give every worker those of the whole data set"
        )
    return found


def _whole_numbers(lengths: Any, samples: int) -> tuple[NDArray[np.int64], str]:
    """`lengths` as an array, and what is wrong with it."""
    found = np.asarray(() if lengths is None else lengths)
    if found.shape != (samples,):
        return _NONE, f"got {'none' if lengths is None else f'shape {found.shape}'}, expected {samples} numbers"
    if not np.issubdtype(found.dtype, np.integer) or found.min() < 0:
        return _NONE, f"got {found.dtype.name} from {found.min()} on, expected whole numbers from 0 on"
    return found.astype(np.int64), ""


def check_parameters(comm: Comm, key: str, described: Mapping[str, str]) -> None:
    """Raises TrainingError, on every worker, unless all train the same parameters in the same order. Collective.

    The sizes of the buckets follow from them, so call it before the first sum of gradients.

    Args:
        described: shape and type of every parameter that this worker trains, by name.
    """
    told = comm.gather(key, json.dumps(described).encode())
    if len(set(told)) > 1:
        raise different_parameters(dict(enumerate(map(json.loads, told))), "in attach()")


def check_possible(session: Session, adapter: Adapter, source: DataSource) -> None:
    """Raises TrainingError if the settings, the data and the framework do not go together."""
    settings, workers = session.settings, session.workers
    is_stream = isinstance(source, Stream)
    if len(workers.here) > 1 and not adapter.computes_for_several:
        raise TrainingError(
            f"this process computes for {len(workers.here)} workers, which is not possible in "
            f"{adapter.framework}: `dynamix rehearse` needs a script in torch"
        )
    if settings.config.memory == "auto" and not adapter.survives_lack_of_memory:
        raise TrainingError(
            f"the cluster file has memory: auto, which finds out by trial what fits; {adapter.framework} may hang or "
            "crash where an allocation fails, so say at_once: for the workers instead"
        )
    if is_stream and len(workers.here) > 1:
        raise TrainingError(
            f"this process computes for {len(workers.here)} workers, each of which would read its own part "
            "of a stream; `dynamix rehearse` needs a data set with len(d) and d[i]"
        )
    if is_stream and workers.later:
        raise TrainingError(
            "the cluster file has workers that come later (elastic.max_workers), and a stream takes none in: who "
            "reads what of it follows from its beginning; give a data set with len(d) and d[i], or remove them"
        )
    if is_stream and settings.config.batch.unit != "samples":
        raise TrainingError(
            f"batch.unit is {settings.config.batch.unit} in the cluster file, which needs the length of every sample "
            "ahead; a stream has none, so remove batch.unit"
        )


def check_unit(place: Position, unit: Unit) -> None:
    """Raises TrainingError unless the sizes of `place`, which may come from a checkpoint, are in `unit`."""
    if place.unit != unit:
        raise TrainingError(
            f"the batch sizes of the checkpoint are in {place.unit}, those of the cluster file in {unit}; resume with "
            f"batch: {{unit: {place.unit}}}"
        )


def check_place(place: Position, samples: int) -> None:
    """Raises TrainingError if `place` is in the middle of an epoch of another length."""
    if place.cursor.is_inside and (place.left is not None or not place.epoch_samples):
        raise TrainingError(
            f"the checkpoint is at sample {place.cursor.position} of a pass over a stream; resume with the same data, "
            "or from a checkpoint of the end of an epoch"
        )
    if place.cursor.is_inside and place.epoch_samples != samples:
        raise TrainingError(
            f"the checkpoint is at sample {place.cursor.position} of a data set of {place.epoch_samples} samples, "
            f"this one has {samples}; resume with the same data, or from a checkpoint of the end of an epoch"
        )


def check_order(place: Position, source: DataSource) -> None:
    """Raises TrainingError if `place` is in the middle of an epoch whose samples come in another order now."""
    if place.cursor.position and place.pass_code:
        source.forget(place.cursor.complete_epochs)
        code = source.code_of_pass(place.seed, place.cursor.epoch)
        if code != place.pass_code:
            raise TrainingError(
                f"the checkpoint is at sample {place.cursor.position} of epoch {place.cursor.epoch}, for which the "
                "sampler draws another order now; make loader and sampler as before, with the same seed, or resume "
                "from a checkpoint of the end of an epoch"
            )


def plan_for(
    plan: Plan, first_sizes: Sequence[int], bounds: Sequence[tuple[int, int]] | None, keep: Keep = "global"
) -> Plan:
    """`plan`, which may come from a checkpoint, as the workers of this run can have it.

    A plan of other workers is shared anew: every worker gets a part in proportion to its first size.

    Args:
        first_sizes: one per worker of this run; 0: it comes later.
        bounds: (smallest, largest) size of every worker; none: there are no bounds.
        keep: what stays as far as the bounds allow, where the number of workers is another one. `global`: the global
            batch. `local`: the mean size of those that have samples.
    """
    sizes, total = plan.batch_sizes, plan.global_batch
    if bounds is not None:
        bounds = [own if first else (0, 0) for own, first in zip(bounds, first_sizes, strict=True)]
    if _of_others(sizes, first_sizes, bounds):
        if keep != "global":
            total = max(round(total / sum(map(bool, sizes)) * sum(map(bool, first_sizes))), 1)
        return shared_out(plan, total, first_sizes, bounds)
    if bounds is None:
        return plan
    inside = (min(max(size, low), high) for size, (low, high) in zip(sizes, bounds, strict=True))
    return replace(plan, batch_sizes=tuple(inside))


def _of_others(sizes: Sequence[int], first_sizes: Sequence[int], bounds: Sequence[tuple[int, int]] | None) -> bool:
    """Whether a plan with these sizes is of other workers than those with first sizes."""
    if len(sizes) != len(first_sizes):
        return True
    least = [low for low, _ in bounds or [(0, 0)] * len(sizes)]
    return any(
        size > 0 if not first else size == 0 < low for size, first, low in zip(sizes, first_sizes, least, strict=True)
    )


def resized(saved: Plan, plan: Plan) -> str:
    """What is said where `plan_for` has made `plan` of the plan `saved` of a checkpoint."""
    before, now = (" + ".join(map(str, one.batch_sizes)) for one in (saved, plan))
    had, has = (sum(map(bool, one.batch_sizes)) for one in (saved, plan))
    if had == has:
        return (
            f"the batch sizes {before} of the checkpoint are outside of the bounds in the cluster file; they become "
            f"{now}"
        )
    total = f"its global batch stays {saved.global_batch}"
    if plan.global_batch != saved.global_batch:
        total = f"its global batch of {saved.global_batch} becomes {plan.global_batch} by elastic.keep and the bounds"
    return f"the checkpoint is of {had} workers, this run has {has}; {total}: {before} becomes {now}"


def check_enough(amount: int, plan: Plan, unit: Unit) -> None:
    """Raises TrainingError unless a pass over so many samples, or tokens, has enough of them for one iteration."""
    if amount < plan.global_batch:
        raise TrainingError(
            f"the data set has {amount} {unit.removeprefix('padded_')} but one iteration takes {plan.global_batch} "
            f"({' + '.join(map(str, plan.batch_sizes))}); use smaller batch sizes or more data"
        )
