"""What the model trains: its state is its history, with the sampler and the plans that real workers have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from dynamix_ps.membership.messages import Process
from dynamix_ps.messages import Plan
from worker_hooks.planning.plan_switch import PlanSwitch
from worker_hooks.sampling.sampler import Cursor, GlobalSampler, Range, Step

SHARE = 2  # samples of a worker
LENGTH = 50  # samples of an epoch
_SAMPLER = GlobalSampler(LENGTH, 0)


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker puts into a round: its trailer, and the samples that its gradient is of."""

    worker: Process
    round: int
    entry_version: int = 0
    leaving: bool = False
    ending: bool = False  # it has heard that all are to end
    closing: bool = False  # its training is over, and this is no gradient
    samples: tuple[Range, ...] = ()


Parts = frozenset[Part]


@dataclass(frozen=True, slots=True)
class Training:
    """Weights, optimizer and place in the data, before a round.

    Attributes:
        rounds: what each was made of.
        planned: the present iteration, and those prefetched.
        next: where the next one to be planned begins.
    """

    rounds: tuple[Parts, ...] = ()
    planned: tuple[Step, ...] = ()
    next: Cursor = field(default_factory=Cursor)

    @property
    def iteration(self) -> int:
        """Number of the present one."""
        return len(self.rounds)

    def plan(self, switch: PlanSwitch) -> Training:
        """One more iteration is prepared."""
        sizes = switch.plan_at(self.iteration + len(self.planned)).batch_sizes
        step = _SAMPLER.plan_step(self.next, sizes)
        return replace(self, planned=(*self.planned, step), next=step.next)

    def samples_of(self, slot: int) -> tuple[Range, ...]:
        """What the worker in this slot takes in the present iteration."""
        return _SAMPLER.ranges(self.planned[0], slot)

    def missing(self, present: Collection[int]) -> list[int]:
        """Slots of the workers that were to be in the present iteration."""
        return [slot for slot, size in enumerate(self.planned[0].sizes) if size and slot not in present]

    def step(self, parts: Parts, missing: Collection[int]) -> Training:
        """After a round of these parts: what the missing ones were to give is owed."""
        owed = [part for slot in missing for part in self.samples_of(slot)]
        return Training((*self.rounds, parts), self.planned[1:], self.next.owing(owed))

    def wrong_samples(self) -> str:
        """Samples that were taken twice, or never; else nothing."""
        done = [one for parts in self.rounds for part in parts for one in part.samples]
        coming = [one for step in self.planned for one in _SAMPLER.ranges(step, 0, len(step.sizes))]
        taken = sorted([*done, *coming, *self.next.owed])
        place = (0, 0)
        for one in (one for one in taken if one.samples):
            if (one.epoch, one.begin) != place:
                return f"samples from {one} on, expected from {place} on: {taken}"
            place = (one.epoch, one.end) if one.end < LENGTH else (one.epoch + 1, 0)
        expected = (self.next.epoch, self.next.position)
        return "" if place == expected else f"samples up to {place}, expected up to {expected}"


def first_plans(workers: int, slots: int, prefetch: int) -> PlanSwitch:
    """Of a job that begins with so many workers."""
    sizes = tuple(SHARE if slot < workers else 0 for slot in range(slots))
    return PlanSwitch(Plan(0, sizes), prefetch, later=range(workers, slots))
