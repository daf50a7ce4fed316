"""What another policy would decide in the windows of a recorded run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dynamix_ps.arbitrator.planner import guard
from dynamix_ps.policy.base import Policy, ask
from dynamix_ps.sim.recorded import RecordedRun


@dataclass(frozen=True, slots=True)
class ReplayedWindow:
    """One window: its sizes, the sizes the run used next, and the sizes that the other policy asks for."""

    window: int
    before: tuple[int, ...]
    recorded: tuple[int, ...]
    other: tuple[int, ...]  # within the bounds
    note: str


def replay(run: RecordedRun, policy: Policy) -> Iterator[ReplayedWindow]:
    """The policy's answer to every window of the run, in order."""
    for one in run.decided:
        view = one.view
        decision = ask(policy, view)
        guarded = guard(decision.batch_sizes, view.plan.batch_sizes, view.bounds, view.largest_total)
        yield ReplayedWindow(view.window, view.plan.batch_sizes, one.batch_sizes, guarded.batch_sizes, decision.note)
