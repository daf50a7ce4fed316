"""Actors: each knows its own records and the field alone, and all together settle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dynamix_ps.messages import NAN
from dynamix_ps.policy.base import View
from dynamix_ps.policy.stigmergy.actor import Actor
from dynamix_ps.policy.window_arrays import arrays_of
from tests.policy_cluster import SmallCluster

SPEEDS = [4000.0, 2000.0, 1000.0]


def cluster_of(jitter: float = 0.02) -> SmallCluster:
    return SmallCluster(list(SPEEDS), noise_scale=1000, jitter=jitter)


def own_record_only(view: View, rank: int) -> View:
    """What worker `rank` knows of a window."""
    return dataclasses.replace(
        view, records=tuple(record if record and record.rank == rank else None for record in view.records)
    )


class Job:
    """One actor per worker, each with its own record, and the sums between them."""

    def __init__(self, n_workers: int, seed: int = 5) -> None:
        self.actors = {rank: Actor(n_workers, [rank], seed=seed) for rank in range(n_workers)}

    def decide(self, view: View) -> tuple[int, ...]:
        """The sizes that are in the third sum."""
        for rank, actor in self.actors.items():
            actor.observe(arrays_of(own_record_only(view, rank)))
        field = self.total()
        for actor in self.actors.values():
            actor.read(field)
        field = self.total()
        sizes = [actor.propose(field, view.window) for actor in self.actors.values()]
        return tuple(np.sum(sizes, axis=0).tolist())

    def total(self) -> np.ndarray:
        """The sum of all traces, as float32 carries it."""
        return np.sum([actor.traces.astype(np.float32) for actor in self.actors.values()], axis=0)


def test_one_actor_per_worker_comes_to_the_sizes_of_one_for_all() -> None:
    """The one for all sees every record, so this fails if an actor uses what other workers measured."""
    cluster, apart, together = cluster_of(), Job(3), Actor(3, seed=5)
    for _ in range(15):
        view = cluster.view()
        together.observe(arrays_of(view))
        together.read(together.traces.astype(np.float32))
        expected = together.propose(together.traces.astype(np.float32), view.window).tolist()
        assert list(apart.decide(view)) == expected
        cluster.plan = dataclasses.replace(cluster.plan, version=view.window + 1, batch_sizes=tuple(expected))


def test_traces_come_from_the_own_record_alone() -> None:
    view = cluster_of().view()
    others = tuple(
        record and dataclasses.replace(record, compute_s=record.compute_s * (1 if record.rank == 1 else 7))
        for record in view.records
    )
    mine, same = Actor(3, [1]), Actor(3, [1])
    mine.observe(arrays_of(view))
    same.observe(arrays_of(dataclasses.replace(view, records=others)))
    assert np.array_equal(mine.traces, same.traces)
    assert not mine.traces[:, [0, 2]].any()
    assert mine.traces[:, 1].any()


def test_it_proposes_for_its_own_workers_alone() -> None:
    cluster, job = cluster_of(), Job(3)
    job.decide(cluster.view())
    proposed = job.actors[1].propose(job.total(), 0)
    assert proposed[1] > 0
    assert proposed[[0, 2]].tolist() == [0, 0]


def test_the_others_take_over_when_a_worker_is_in_the_sum_no_more() -> None:
    cluster, job = cluster_of(jitter=0.0), Job(3)
    for _ in range(15):
        sizes = job.decide(cluster.view())
        cluster.plan = dataclasses.replace(cluster.plan, version=cluster.window, batch_sizes=sizes)
    before = cluster.plan.batch_sizes
    del job.actors[0]
    for _ in range(60):  # calm: three percent a window
        sizes = job.decide(cluster.view())
        assert sizes[0] == 0
        cluster.plan = dataclasses.replace(cluster.plan, version=cluster.window, batch_sizes=(before[0], *sizes[1:]))
    after = cluster.plan.batch_sizes
    assert after[1] / after[2] == pytest.approx(before[1] / before[2], rel=0.15)
    assert after[1] > 1.2 * before[1]


def test_a_worker_that_was_never_measured_keeps_its_size_and_stops_nobody() -> None:
    cluster, job = cluster_of(), Job(3)
    for _ in range(5):
        view = cluster.view()
        records = tuple(
            record and (dataclasses.replace(record, compute_s=NAN) if record.rank == 2 else record)
            for record in view.records
        )
        sizes = job.decide(dataclasses.replace(view, records=records))
        assert sizes[2] == 64
        cluster.plan = dataclasses.replace(cluster.plan, version=cluster.window, batch_sizes=sizes)
    assert sizes[0] > sizes[1]


def test_a_slow_link_raises_the_alarm_once() -> None:
    view, actor = cluster_of().view(), Actor(3)
    alarms = []
    for busy in (0.1, 0.1, 0.5, 0.5):
        records = tuple(record and dataclasses.replace(record, push_busy=busy) for record in view.records)
        actor.observe(arrays_of(dataclasses.replace(view, records=records)))
        alarms.append(float(actor.traces[4].max()))
    assert alarms[0] == 2.0
    assert alarms[1] < 2.0 < alarms[2]
    assert alarms[3] < alarms[2]


def test_the_field_is_read_after_the_first_window() -> None:
    with pytest.raises(ValueError, match="call observe"):
        Actor(2).read(np.zeros((6, 2)))
