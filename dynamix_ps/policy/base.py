"""What a policy is: it sees one closed window and answers with batch sizes.

Every subclass of `Policy` with a `name` and a `decide` is a policy. A cluster file names it as `policy.name:
package.module:Class`. Its constructor is called by keyword, with those of these parameters that it has:

    n_workers   number of workers
    rng         numpy.random.Generator, the only source of random numbers
    config      the whole cluster file, `config.schema.Config`
    resume      for a `Learner`: the file that `save` wrote before the arbitrator was restarted, or None

and with every key of `policy.options`. The constructor raises PolicyError or ValueError for options that it cannot use.

Policies are pure: no clock, no I/O, and random numbers only from `rng`. So the same views in the same order give the
same answers. A policy may remember earlier views.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dynamix_ps.errors import PolicyError
from dynamix_ps.messages import NAN, LinkView, Plan, ServerView, WindowRecord

LR_RULES = ("none", "linear", "sqrt", "adascale")  # how the learning rate follows the global batch


@dataclass(frozen=True)
class View:
    """What is known when window `window` closes."""

    window: int
    plan: Plan  # the newest plan; an answer replaces its sizes
    # (smallest, largest) size of every worker, no more than fits into its memory; (0, 0): it is not there
    bounds: tuple[tuple[int, int], ...]
    records: tuple[WindowRecord | None, ...]  # by rank; None: that worker did not report
    links: tuple[LinkView, ...] = ()  # by rank, from both sides; empty: no role reported its connections
    servers: tuple[ServerView, ...] = ()
    lr_rule: str = "none"  # how the learning rate follows B (LR_RULES)
    reference_batch: int = 0  # the global batch for which the learning rate is tuned; 0: that of the newest plan
    largest_total: float = NAN  # of all sizes together: a pass over the data has no more; NaN: it is not known
    ring: bool = False  # gradients go around a ring, where nobody is done before the slowest link is

    @cached_property
    def reported(self) -> tuple[WindowRecord, ...]:
        """The records that are there."""
        return tuple(record for record in self.records if record is not None)

    @cached_property
    def clean(self) -> bool:
        """Whether the window tells what `plan` does: it ran under that plan alone, without pauses."""
        return bool(self.reported) and all(
            not record.flagged and record.plan_version == self.plan.version for record in self.reported
        )


def reference_batch(records: Iterable[WindowRecord | None], first_sizes: Sequence[int]) -> int:
    """The global batch for which the learning rate is tuned.

    Workers that resume from a checkpoint report it. Otherwise it is the sum of the first sizes.
    """
    told = (record.lr_batch for record in records if record is not None)
    return next((round(batch) for batch in told if batch > 0), sum(first_sizes))


def largest_total(records: Iterable[WindowRecord | None]) -> float:
    """The largest sum of all sizes: a pass over the data. NaN if no worker reports how long a pass is."""
    return max((record.data_size for record in records if record is not None and record.data_size >= 1), default=NAN)


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's answer: one size per worker, and the reward of the plan that just ran if that was computed."""

    batch_sizes: tuple[int, ...]
    reward: float | None = None
    note: str = ""  # for users; empty: there is nothing to say
    fallback: bool = False  # by the safety net instead of the policy (safety_net.py)


class Policy(Protocol):
    """Every policy."""

    name: str  # in logs and reports

    @abstractmethod
    def decide(self, view: View) -> Decision:
        """Batch sizes for the next plan. Answering with `view.plan.batch_sizes` keeps the plan."""
        ...


def ask(policy: Policy, view: View) -> Decision:
    """The policy's answer. Raises PolicyError if it is not a Decision with numbers, or whatever the policy raises."""
    answer = policy.decide(view)
    if isinstance(answer, Decision) and all(map(_is_number, answer.batch_sizes)):
        return answer
    raise PolicyError(f"{policy.name} answered {answer!r:.200}, expected a Decision with one batch size per worker")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


@runtime_checkable
class Learner(Protocol):
    """A policy that learns from the results of its decisions, while decisions go on.

    One update at a time. `begin_update` and `finish_update` are called between decisions. The function that
    `begin_update` returns is called in another thread, while `decide` is called in this one.
    """

    @property
    def update_due(self) -> bool:
        """Whether enough has been seen for an update."""
        ...

    def begin_update(self) -> Callable[[], Any]:
        """Take out the collected results. The returned function learns from them on copies, which may take long."""
        ...

    def finish_update(self, finished: Any) -> Mapping[str, Any]:
        """Use the result of that function, and return diagnostics.

        `accepted` among them is 0 if the weights stay, because the new weights are not finite.
        """
        ...

    def save(self, file: Path) -> None:
        """Write all that a later process needs to go on. Atomic; called in another thread. Raises OSError."""
        ...


class InnerLearner:
    """Of a policy around another one: forwards what a `Learner` is asked; without one inside no update is due."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.inner = policy

    @property
    def update_due(self) -> bool:
        return isinstance(self.inner, Learner) and self.inner.update_due

    def begin_update(self) -> Callable[[], Any]:
        return self._learner.begin_update()

    def finish_update(self, finished: Any) -> Mapping[str, Any]:
        return self._learner.finish_update(finished)

    def save(self, file: Path) -> None:
        self._learner.save(file)

    @property
    def _learner(self) -> Learner:
        assert isinstance(self.inner, Learner)  # else no update is ever due
        return self.inner
