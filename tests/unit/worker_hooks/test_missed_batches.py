"""Batches prepared ahead while workers are lost: every sample once per epoch, also where loops are left or resumed."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import Plan
from worker_hooks.loading.batches import BatchStream, limit_reached
from worker_hooks.loading.data_source import begun_ahead
from worker_hooks.planning.plan_switch import PlanSwitch
from worker_hooks.sampling.sampler import Cursor, GlobalSampler

WORKERS, EPOCHS = 3, 3


class Numbers:
    """A source whose orders of earlier passes are gone as soon as they are forgotten."""

    def __init__(self, samples):
        self.samples, self.oldest = samples, 0

    def order(self, seed, epoch):
        assert epoch >= self.oldest, f"pass {epoch} was forgotten"
        return np.random.default_rng((seed, epoch)).permutation(self.samples)

    def samples_per_pass(self, global_batch):
        return self.samples

    def forget(self, epoch):
        assert epoch >= self.oldest
        self.oldest = epoch

    def code_of_pass(self, seed, epoch):
        return 0


class Hook:
    """What a training keeps between two iterations."""

    def __init__(self, samples, plan, depth, lag, cursor=Cursor()):
        self.cursor = cursor
        self.switch = PlanSwitch(plan, lag)
        source = Numbers(samples)
        self.sampler = GlobalSampler(samples, 3, order=source.order)
        self.stream = BatchStream(
            source,
            lambda batches, _: begun_ahead(lambda numbers: lambda: numbers, batches, depth),
            self.sampler,
            range(WORKERS),
            self.switch.plan_at,
        )


@given(
    samples=st.integers(1, 80),
    sizes=st.lists(st.integers(0, 20), min_size=WORKERS, max_size=WORKERS).filter(any),
    depth=st.integers(0, 3),
    more=st.integers(0, 2),
    losses=st.lists(st.tuples(st.integers(0, 12), st.integers(0, WORKERS - 1)), max_size=2),
    left=st.sets(st.integers(1, 12), max_size=3),
    unused=st.sets(st.integers(0, 12), max_size=4),
    resumed=st.integers(0, 12),
    in_passes=st.booleans(),
)
def test_every_sample_once_per_epoch(samples, sizes, depth, more, losses, left, unused, resumed, in_passes):
    """`depth`: batches that this worker prepares ahead; another one `more`. `losses`: (first iteration, worker).

    Loops are left after the iterations `left`, and before the batches of the iterations `unused` are used.
    """
    hook, lag = Hook(samples, Plan(0, tuple(sizes)), depth, depth + more), depth + more
    seen, iteration, unused = Counter(), 0, set(unused)
    for limit in range(1, EPOCHS + 1) if in_passes else (EPOCHS,):
        while not limit_reached(hook.stream.resumable(hook.cursor, iteration)[0], iteration, limit, None):
            for batch in hook.stream.run(hook.cursor, iteration, limit, None):
                if iteration in unused:
                    unused.remove(iteration)
                    break
                step, epoch = batch.step, batch.step.cursor.complete_epochs
                lost = {rank for first, rank in losses if first <= iteration}
                missing = [rank for rank in sorted(lost) if step.sizes[rank]]
                for rank in {*range(WORKERS)} - lost:
                    seen.update((epoch, number) for number in hook.sampler.indices(step, rank).tolist())
                if missing:
                    hook.switch.go_without(iteration, missing)
                    hook.stream.missed(step, missing, iteration + 1 + lag)
                hook.switch.decide(iteration, None)
                hook.cursor, iteration = step.next, iteration + 1
                if iteration == resumed:
                    place, _ = hook.stream.resumable(hook.cursor, iteration)
                    hook = Hook(samples, hook.switch.newest_scheduled, depth, lag, place)
                if iteration == resumed or iteration in left:
                    break
    assert seen == Counter((epoch, number) for epoch in range(EPOCHS) for number in range(samples))
