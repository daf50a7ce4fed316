"""What describes simulated clusters, as arrays: one row per environment. Units are in the names.

The first axis of every array is the environment, so that another cluster can replace a finished one in place. Real
numbers are float32, the precision of the simulator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.comm.byteps.placement import server_shares
from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.sim.cluster.effect_fields import effect_fields
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Burst, Event

Reals = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]


class Kind(IntEnum):
    """What an event or a burst changes while it lasts, and how its value is applied."""

    COMPUTE = 0  # compute time, multiplied by the value
    BANDWIDTH = 1  # of a worker's link, multiplied by the value
    LOSS = 2  # part of the segments lost, plus the value
    LATENCY = 3  # round trip time, multiplied by the value
    SERVER = 4  # bandwidth of all servers, multiplied by the first worker's value


BURST_KINDS = (Kind.COMPUTE, Kind.BANDWIDTH, Kind.LOSS)  # the axis of burst_*
BASE_MEMORY_BYTES, SAMPLE_MEMORY_BYTES = 3e8, 1e5  # used where a scenario gives none (chosen by us)
NEUTRAL = np.array([1, 1, 0, 1, 1], dtype=np.float32)  # by kind


@dataclass(frozen=True)
class Parameters:
    """E environments of W workers each. A `knows_` array is False where that source measures nothing."""

    # workers, (E, W)
    fixed_s: Reals  # compute time of an iteration that does not depend on the batch
    per_sample_s: Reals
    memory_limit: Reals  # samples beyond which compute time rises steeply
    quota: Reals  # CPU time allowed over CPU time wanted; 1: no quota. The times above include its effect
    link_bytes_per_s: Reals  # in each direction
    latency_s: Reals  # round trip time without traffic
    loss: Reals  # part of the segments lost
    server_share: Reals  # part of all bytes that a server on the worker's host sums; the rest is for the servers below
    low: Whole  # bounds of the batch size
    high: Whole
    initial: Whole  # first sizes; the learning rate is tuned for their sum
    # effects of real machines, (E, W); effects/ explains them
    tile_samples: Reals  # computed at once
    tile_part: Reals  # of the time per sample that comes in whole tiles
    cliff_samples: Reals  # beyond which every sample takes `cliff_slope` times as long
    cliff_slope: Reals
    host: Whole  # equal for workers of one host
    heat_slow_down: Reals  # factor on the compute time of a hot machine under full load
    heat_s: Reals  # time constant of warming and cooling
    heat_load: Reals  # part of the time in which a machine can compute without becoming slower
    # random bursts, (E, len(BURST_KINDS), W), with exponential gaps and lengths
    burst_gap_s: Reals  # mean time between two bursts; infinite: none
    burst_length_s: Reals
    burst_value: Reals
    # events of a trace, (E, M) and (E, M, W); unused events are neutral
    event_kind: NDArray[np.int8]
    event_by_epoch: Mask  # `event_from` and `event_until` are in epochs, else in seconds
    event_from: Reals
    event_until: Reals
    event_every: Reals  # period with which the event comes back; infinite: once
    event_value: Reals  # neutral for other workers
    # the cluster, (E,)
    window: Whole  # iterations per window (k)
    warm_up: Reals  # compute time in the first window over that in later windows
    jitter: Reals  # of one iteration's compute time, standard deviation over mean
    drift: Reals  # of a worker's speed, standard deviation of its logarithm
    drift_s: Reals  # time constant of the drift
    contention: Reals  # by what part one computing worker slows the others of its host down
    servers: Whole  # all of them
    server_bytes_per_s: Reals  # of those on hosts of their own together, in each direction; infinite: there are none
    ring: Mask  # ring all-reduce instead of parameter servers
    model_bytes: Reals
    overlap: Reals  # part of the backward pass that pushes can overlap
    cores: Reals  # that a worker keeps busy while it computes
    base_memory_bytes: Reals
    sample_memory_bytes: Reals
    knows_network: Mask  # the workers' own connections
    knows_both_sides: Mask  # and the servers' ends of these connections
    knows_servers: Mask
    knows_machine: Mask
    gpu: Mask
    # training, (E,); see learning.py
    lr_rule: NDArray[np.int8]  # index into LR_RULES
    tuning: Reals  # learning rate at the initial B over the best learning rate there
    noise_scale: Reals  # samples, at the start
    noise_growth: Reals  # the noise scale is proportional to (excess loss) ** -noise_growth
    progress_scale: Reals  # noiseless steps after which progress slows down
    decay: Reals  # excess loss is (1 + progress / progress_scale) ** -decay
    accuracy_power: Reals  # error beyond the best is proportional to (excess loss) ** accuracy_power
    first_loss: Reals
    last_loss: Reals
    chance: Reals  # accuracy of an untrained model
    best_accuracy: Reals
    gap: Reals  # part of the test accuracy that very large batches lose
    gap_batch: Reals  # B at which half of the gap is lost
    gradient_sq: Reals  # squared norm of the true gradient at the start
    directions: Reals  # effective number of dimensions of the gradient noise
    data_samples: Reals  # samples of one epoch
    target_accuracy: Reals  # on the test set
    max_windows: Whole  # an episode is truncated after so many

    @property
    def environments(self) -> int:
        return int(self.initial.shape[0])

    @property
    def n_workers(self) -> int:
        return int(self.initial.shape[1])

    @cached_property
    def iterations(self) -> Reals:
        """`window` as float32; (E,)."""
        return self.window.astype(np.float32)

    @cached_property
    def reference_batch(self) -> Reals:
        """B of the first plan; (E,)."""
        batch: Reals = self.initial.sum(axis=-1).astype(np.float32)
        return batch

    @cached_property
    def has_tiles(self) -> bool:
        """Whether any worker computes whole tiles; the same for the others below."""
        return bool((self.tile_part > 0).any())

    @cached_property
    def has_cliffs(self) -> bool:
        return bool((self.cliff_slope > 1).any())

    @cached_property
    def has_contention(self) -> bool:
        return bool(self.contention.any())

    @cached_property
    def has_servers_beside(self) -> bool:
        return bool(self.server_share.any())

    @cached_property
    def has_rings(self) -> bool:
        return bool(self.ring.any())

    def replaced(self, which: Mask, others: Parameters) -> Parameters:
        """A copy in which the environments of `others` replace those where `which` is true, in order."""
        events = max(self.event_kind.shape[1], others.event_kind.shape[1])
        into, new = self.with_events(events), others.with_events(events)
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            changed[field.name] = getattr(into, field.name).copy()
            changed[field.name][which] = getattr(new, field.name)
        return Parameters(**changed)

    def with_events(self, count: int) -> Parameters:
        """A copy with `count` events; added events have no effect."""
        more = count - self.event_kind.shape[1]
        if not more:
            return self
        wide: dict[str, float] = {"event_kind": 0, "event_by_epoch": False, "event_value": 1}
        wide |= dict.fromkeys(("event_from", "event_until", "event_every"), np.inf)
        padded = {}
        for name, filler in wide.items():
            array = getattr(self, name)
            room = np.full((array.shape[0], more, *array.shape[2:]), filler, dtype=array.dtype)
            padded[name] = np.concatenate([array, room], axis=1)
        return dataclasses.replace(self, **padded)


def join(several: Sequence[Parameters]) -> Parameters:
    """The environments of all, one after the other. All need the same number of workers."""
    sizes = {one.n_workers for one in several}
    if len(sizes) != 1:
        raise ValueError(f"environments need the same number of workers to be simulated together, got {sorted(sizes)}")
    events = max(one.event_kind.shape[1] for one in several)
    wide = [one.with_events(events) for one in several]
    names = [field.name for field in dataclasses.fields(Parameters)]
    return Parameters(**{name: np.concatenate([getattr(one, name) for one in wide]) for name in names})


def parameters_of(scenarios: Sequence[Scenario]) -> Parameters:
    """One environment per scenario, all with the same number of workers."""
    return join([_one(scenario) for scenario in scenarios])


def _one(scenario: Scenario) -> Parameters:
    n, each, training, servers = scenario.n_workers, scenario.each_worker, scenario.training, scenario.servers
    gap_s, length_s, value = _bursts(scenario.bursts, n)

    def workers(name: str) -> Reals:
        return np.array([[getattr(worker, name) for worker in each]], dtype=np.float32)

    def all_(value: float) -> Reals:
        return np.array([value], dtype=np.float32)

    def yes(value: bool) -> Mask:
        return np.array([value])

    trained: dict[str, Any] = {
        field: all_(getattr(training, field)) for field in type(training).model_fields if field != "profile"
    }
    return Parameters(
        fixed_s=workers("fixed_s"),
        per_sample_s=workers("per_sample_s"),
        memory_limit=workers("memory_limit"),
        quota=workers("quota"),
        link_bytes_per_s=workers("bytes_per_s"),
        latency_s=workers("latency_s"),
        loss=workers("loss"),
        server_share=_server_share(scenario)[None],
        **effect_fields(scenario),
        low=np.full((1, n), scenario.batch.min, dtype=np.int64),
        high=np.full((1, n), scenario.batch.max, dtype=np.int64),
        initial=np.array([scenario.initial_sizes], dtype=np.int64),
        burst_gap_s=gap_s,
        burst_length_s=length_s,
        burst_value=value,
        **_events(scenario.trace, n),
        window=np.array([scenario.window]),
        warm_up=all_(scenario.warm_up),
        jitter=all_(scenario.jitter),
        drift=all_(scenario.drift),
        drift_s=all_(scenario.drift_s),
        servers=np.array([servers.count + n * servers.beside_workers]),
        server_bytes_per_s=all_(servers.count * servers.bytes_per_s if servers.count else np.inf),
        ring=yes(scenario.architecture == "ring"),
        model_bytes=all_(scenario.model_bytes),
        overlap=all_(scenario.overlap),
        cores=all_(scenario.cores),
        base_memory_bytes=all_(BASE_MEMORY_BYTES + 4 * scenario.model_bytes),  # weights, gradients, two moments
        sample_memory_bytes=all_(SAMPLE_MEMORY_BYTES),
        knows_network=yes(scenario.sees_network),
        knows_both_sides=yes(scenario.sees_network),
        knows_servers=yes(scenario.sees_network),
        knows_machine=yes(True),
        gpu=yes(scenario.gpu),
        lr_rule=np.array([LR_RULES.index(scenario.lr_rule)], dtype=np.int8),
        target_accuracy=all_(scenario.target_accuracy),
        max_windows=np.array([scenario.max_windows]),
        **trained,
    )


def _server_share(scenario: Scenario) -> Reals:
    """(W,) shares of the servers beside workers, as the data plane gives them when training begins."""
    servers, each = scenario.servers, scenario.each_worker
    if scenario.architecture == "ring" or not servers.beside_workers:
        return np.zeros(len(each), dtype=np.float32)
    beside = {f"worker-{rank}": worker.bytes_per_s for rank, worker in enumerate(each)}
    rates = beside | {f"server-{index}": servers.bytes_per_s for index in range(servers.count)}
    return server_shares(list(beside), list(rates), rates)[: len(each)].astype(np.float32)


def _events(trace: Sequence[Event], n: int) -> dict[str, Any]:
    kinds = [Kind[event.what.upper()] for event in trace]
    value = np.tile(NEUTRAL[np.array(kinds, dtype=int)][:, None], (1, n))
    for row, event in zip(value, trace, strict=True):
        row[slice(None) if event.workers is None else list(event.workers)] = event.value
    begins = [event.at_s if event.at_epoch is None else event.at_epoch for event in trace]
    ends = [event.until_s if event.at_epoch is None else event.until_epoch for event in trace]

    def or_never(times: list[float | None]) -> Reals:
        return np.array([[np.inf if time is None else time for time in times]], dtype=np.float32).reshape(1, -1)

    return {
        "event_kind": np.array([kinds], dtype=np.int8).reshape(1, -1),
        "event_by_epoch": np.array([[event.at_epoch is not None for event in trace]], dtype=bool).reshape(1, -1),
        "event_from": np.array([begins], dtype=np.float32).reshape(1, -1),
        "event_until": or_never(ends),
        "event_every": or_never([event.every_s for event in trace]),
        "event_value": value[None],
    }


def _bursts(bursts: Sequence[Burst], n: int) -> tuple[Reals, Reals, Reals]:
    shape = (1, len(BURST_KINDS), n)
    gap_s, length_s = np.full(shape, np.inf, dtype=np.float32), np.ones(shape, dtype=np.float32)
    value = np.tile(NEUTRAL[list(BURST_KINDS)][:, None], (1, 1, n))
    for burst in bursts:
        where = (
            0,
            BURST_KINDS.index(Kind[burst.what.upper()]),
            slice(None) if burst.workers is None else list(burst.workers),
        )
        gap_s[where], length_s[where], value[where] = burst.every_s, burst.for_s, burst.value
    return gap_s, length_s, value
