"""The plans of a training: which one is in force when, and the learning rate that goes with its sizes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from worker_hooks.exchange.units import SizeWorth
from worker_hooks.planning.learning_rate import LearningRate
from worker_hooks.planning.plan_switch import PlanSwitch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dynamix_ps.messages import Plan
    from worker_hooks.exchange.trailer import GlobalView
    from worker_hooks.planning.rate_guard import RateGuard
    from worker_hooks.planning.wire_choice import WireChoice
    from worker_hooks.saved.checkpoint import Position
    from worker_hooks.session import Session
    from worker_hooks.size_choice import SizeChoice


class Plans:
    """What all workers do at the same iteration, because they follow the same plans.

    Attributes:
        depth: iterations whose batches a worker prepares before the one at hand.
        ahead: iterations whose batches the script takes before it trains them (taken_ahead.py).
        switch: the plans that are in force, and to come.
        rate: the factor on the learning rate of the script.
        guard: takes the weights back when the loss rises; none: the cluster file does not ask for it.
        wire: by which gradients travel; none: that does not change.
        worth: what sizes are worth where losses are means over other units.
        own_size: sizes that this worker chooses; none: the arbitrator does.
        reference_batch: global batch that the learning rate is for.
        applied: version of the newest plan that was in force.
    """

    depth = 0
    ahead = 0
    switch: PlanSwitch
    rate: LearningRate
    guard: RateGuard | None = None
    wire: WireChoice | None = None
    worth: SizeWorth
    own_size: SizeChoice | None = None
    reference_batch: int
    applied: int

    def __init__(self, session: Session) -> None:
        self._session, self._settings = session, session.settings
        self._workers = session.workers

    @property
    def lag(self) -> int:
        """So many iterations pass between the decision for a plan and the first one that it is in force in."""
        return self.depth + self.ahead

    def begin_at(self, start: Position, data_size: float) -> None:
        """Training begins at `start`, with data of this size per pass."""
        settings, config, workers = self._settings, self._settings.config, self._workers
        self.reference_batch = start.reference_batch
        self.switch = PlanSwitch(
            start.plan, self.lag, settings.bounds, config.elastic.keep, settings.slot_sizes, workers.later
        )
        self.rate = LearningRate(config.lr_rule, start.reference_batch, workers.count, start.noise, start.lr_guard)
        self.renew_guard()
        if wires := self._session.comm.wires:
            from worker_hooks.planning.wire_choice import WireChoice

            self.wire = WireChoice(wires)
        self.worth = SizeWorth(start.units)
        self.applied = start.plan.version
        if settings.own_sizes:
            from worker_hooks.size_choice import size_choice

            self.own_size = size_choice(settings, workers.here, start.reference_batch, data_size)
            self._session.reporter.listen(self.own_size.hear)

    def plan_at(self, iteration: int) -> Plan:
        """The plan of an iteration."""
        return self.switch.plan_at(iteration)

    def renew_guard(self) -> None:
        """The guard forgets what it knows, such as where a worker enters that cannot know it."""
        if not self._settings.guards_rate:
            return
        from worker_hooks.planning.rate_guard import RateGuard

        self.guard = RateGuard(self.rate, partial(self._session.degraded, "learning rate"))

    def prepare_ahead(self, depth: int) -> None:
        """From now on so many batches are prepared ahead."""
        self.depth = depth
        self.switch.lag = self.lag

    def take_ahead(self, batches: int) -> None:
        """The script takes so many batches before it trains them: plans are for batches that are not taken yet."""
        self.ahead = batches
        self.switch.lag = self.lag

    def decide(self, iteration: int, view: GlobalView, told: NDArray[np.floating[Any]]) -> None:
        """All workers learn from the sum of `iteration` which plan is next.

        `told`: what they say in it of the sizes that they choose.
        """
        self.switch.decide(iteration, view.agreed_version)
        if self.own_size is not None and (sizes := self.own_size.summed(told, view.present)):
            self.switch.choose(iteration, sizes)

    def shares(self, there: Sequence[int]) -> list[int]:
        """What the workers in the slots `there` score of a data set, in proportion to their batch sizes."""
        sizes = self.switch.newest_scheduled.batch_sizes
        shares = [size if slot in there else 0 for slot, size in enumerate(sizes)]
        return shares if any(shares) else [int(slot in there) for slot in range(len(sizes))]
