"""The sums of a training, in which all workers prove that they do the same with the same weights.

agreement.py says what is compared, and in which words the workers are told.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.agreement import Account, DataPlace, Doing, disagreement, refused_loss, weights_differ
from worker_hooks.exchange.trailer import Contribution, GlobalView
from worker_hooks.iteration.reduction import Reduction
from worker_hooks.observe.stall import StallWatch
from worker_hooks.process import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from worker_hooks.adapter import Adapter
    from worker_hooks.data import Data
    from worker_hooks.exchange.gradient_exchange import Bucket, GradientExchange
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.observe.stopwatch import Watch
    from worker_hooks.plans import Plans
    from worker_hooks.progress import TrainingPlace
    from worker_hooks.session import Session


class Sums:
    """What one training sums, and what all workers say beside it.

    Attributes:
        prefix: of the keys of this training.
        exchange: of the gradients.
        made: sums so far; the number decides which weights the next one compares.
        reduction: what gradients count with.
        scale: of the loss, by a GradScaler.
        weight: of gradients of the newest batch.
        has_earlier: gradients of earlier batches are in no sum yet.
        refusal: why the loss of the coming sum must not be in it, as far as this worker knows.
        follows: this worker is in no sum yet: it takes those of the others, and is to do the same as they do.
        before_sum: called before every sum that is none of a gather, with what this worker is about to do.
        check_announcement: raises an error where this worker must not announce what it is about to do.
    """

    exchange: GradientExchange

    def __init__(
        self,
        session: Session,
        adapter: Adapter,
        data: Data,
        plans: Plans,
        progress: TrainingPlace,
        watch: Watch,
        prefix: str,
    ) -> None:
        self._session, self._comm = session, session.comm
        self._adapter, self._data, self._plans, self.progress = adapter, data, plans, progress
        self.watch, self.prefix = watch, prefix
        self._stall = StallWatch(session.workers.here.start, session.reporter, session.settings.config.timeouts)
        self.made = 0
        self._additions = 0  # of gradients, when the present batch began
        self.reduction = Reduction()
        self.scale = 1.0
        self.weight, self.has_earlier = 0.0, False
        self.refusal = ""
        self.follows = False
        self.before_sum: Callable[[str], None] = lambda kind: None
        self.check_announcement: Callable[[str], None] = lambda kind: None

    def open(self) -> None:
        """Declare the sums of the parameters that the adapter has laid out. At the same place on all workers."""
        self.exchange = self._adapter.make_exchange(self.prefix, self._session)
        if self._plans.wire is not None:
            self.exchange.set_wire(self._plans.wire.wire)

    @property
    def leads(self) -> bool:
        """Whether this worker does what one worker does for all, such as checkpoints."""
        return self._session.workers.here.start == self.exchange.trailer.leader

    @property
    def has_local(self) -> bool:
        """Whether the script has added gradients that are in no sum yet."""
        return self.exchange.has_local or self._adapter.has_unseen()

    @property
    def has_of_batch(self) -> bool:
        """Whether some of these gradients are of the present batch."""
        return self.exchange.additions != self._additions or self._adapter.has_unseen()

    @property
    def weights(self) -> tuple[float, float]:
        """Direction and size of the weights that the coming sum compares."""
        return self._adapter.parameters.samples.part(self.made) if self._comm.size > 1 else (0.0, 0.0)

    def begin_batch(self, now: IterationInFlight) -> None:
        """The script gets the batch of `now`."""
        self.has_earlier, self._additions = self.exchange.has_local, self.exchange.additions
        self.weigh(now)

    def weigh(self, now: IterationInFlight) -> None:
        """Gradients count as those of the batch of `now`, those of earlier batches too."""
        before, self.weight = self.weight, self.reduction.weight(now)
        if self.has_earlier and before != self.weight:
            self.exchange.carry(before, self.weight)

    def doing(self, kind: str) -> Doing:
        """What this worker is about to do."""
        progress, stream = self.progress, self._data.stream
        setting = self._adapter.setting() + (f" loss scale {self.scale:g}" if self.scale != 1 else "")
        if (guard := self._plans.rate.guard) != 1:
            setting += f" guard's factor on the learning rate {guard!r}"
        if self._plans.wire is not None:
            setting += f" wire {self._plans.wire.wire}"
        cursor = progress.cursor
        place = DataPlace(cursor.epoch, cursor.position, stream.seed, stream.pass_code, cursor.owed)
        layout = self._adapter.parameters.code
        return Doing(kind, progress.iteration, progress.steps, layout, place, setting, self.refusal)

    def announce(self, kind: str) -> None:
        """Make sure that all workers are about to do `kind`. Collective.

        Raises TrainingError, on every worker, if another one does something else, be it the sum of its gradients.
        """
        self.check_announcement(kind)
        if self._comm.size == 1:
            return
        self.complete()
        stream = self._data.stream
        mine = Contribution(
            samples=0,
            loss=0.0,
            correct=math.nan,
            grad_sq=math.nan,
            plan_version=self._plans.switch.newest_scheduled.version,
            waited_s=0.0,
            doing=self.doing(kind).code(),
            weights=self.weights,
            stream=stream.report(used=False),
        )
        self.before_sum(kind)
        view = self.exchange.announce(mine, self.tell_waiting)
        self.made += 1
        self.check_agreement(view, kind)
        stream.told(view.stream, view.present)

    def receive(self, iteration: int, trailer_alone: bool = False) -> GlobalView:
        """Wait for the sum of gradients that is under way. `iteration`: its number in the records.

        `trailer_alone`: not for those of buckets without the trailer, which `arrive` waits for.
        """
        with self.watch.blocked():
            view = self.exchange.receive(lambda waited_s: self._stall.waiting(iteration, waited_s), trailer_alone)
        self.made += 1
        return view

    def arrive(self, bucket: Bucket) -> None:
        """Wait for the sum of a late bucket. Where it fails after a step with others, this process ends at once.

        Then nothing of the script runs any more that could save such weights, or go on with them.
        """
        try:
            with self.watch.blocked():
                self.exchange.arrive(bucket, self.tell_waiting)
        except Exception:
            if self.exchange.late is not None and self.exchange.late.has_stepped:
                failure.end_now()
            raise

    def complete(self) -> None:
        """Wait for all sums of gradients that are late."""
        for bucket in self.exchange.late_buckets():
            self.arrive(bucket)

    def tell_waiting(self, waited_s: float) -> None:
        """This worker has waited so long for a sum that is none of gradients."""
        self._stall.waiting(self.progress.iteration, waited_s)

    def check_agreement(self, view: GlobalView, kind: str) -> None:
        """Raises TrainingError, the same on all workers, unless all do the same with the same weights."""
        doing: Sequence[int] = view.doing
        weights: Sequence[Sequence[float]] = view.weights
        if 0 in view.members:  # a slot is empty
            doing = [doing[rank] for rank in view.present]
            weights = [[part[rank] for rank in view.present] for part in weights]
        if self.follows:
            own = self.exchange.trailer.as_summed(self._adapter.parameters.samples.part(self.made - 1))
            weights = [[*part, mine] for part, mine in zip(weights, own, strict=True)]
        self.check_codes(doing, kind)
        if weights_differ(weights, self._adapter.parameters.tolerance):
            raise self._disagreement(kind)
        if self.refusal:
            raise refused_loss({view.present[0]: self.doing(kind)})

    def check_codes(self, codes: Sequence[int], kind: str) -> None:
        """Raises TrainingError, the same on all workers, unless these codes of what each does are the same.

        `kind`: what this worker does.
        """
        if self.follows:
            codes = [*codes, self.doing(kind).code()]
        if codes.count(codes[0]) != len(codes):
            raise self._disagreement(kind)

    def _disagreement(self, kind: str) -> TrainingError:
        """The error that all workers raise, once they have told each other what they do."""
        if self.follows:
            return TrainingError(
                f"this worker follows the others until it enters, and is not where they are: {self.doing(kind)}; "
                "run.register() all that the script changes beside model and optimizer, such as schedulers"
            )
        adapter = self._adapter
        mine = Account(self.doing(kind), adapter.parameters.described(), adapter.parameters.samples.each(self.made - 1))
        told = self._comm.gather_present(f"{self.prefix}.account", mine.pack())
        accounts = {rank: Account.unpack(one) for rank, one in told.items()}
        return disagreement(accounts, adapter.parameters.tolerance)
