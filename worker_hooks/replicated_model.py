"""A model that has a replica on every worker: all replicas do the same, or all workers stop.

agreement.py says what is compared, and in which words the workers are told.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.agreement import DRAWN, LAYOUT, Account, Doing, disagreement, refused_loss, weights_differ
from worker_hooks.framework import Framework
from worker_hooks.trailer import Contribution, GlobalView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamix_ps.comm import Comm
    from worker_hooks.batches import Batches
    from worker_hooks.exchange import GradientExchange
    from worker_hooks.iteration import IterationInFlight
    from worker_hooks.observe.stall import StallWatch
    from worker_hooks.observe.stopwatch import Watch
    from worker_hooks.plan_switch import PlanSwitch
    from worker_hooks.sampler import Cursor
    from worker_hooks.workers import Workers


class ReplicatedModel(Framework):
    """`rank` and `size` may be read at any time, and `iteration`: the number of complete ones."""

    rank: int
    size: int
    iteration = 0
    _comm: Comm
    _exchange: GradientExchange
    _now: IterationInFlight
    _watch: Watch
    _workers: Workers
    _cursor: Cursor
    _stream: Batches
    _switch: PlanSwitch
    _stall: StallWatch
    _prefix: str  # of the keys of this model
    _steps = 0  # of all optimizers
    _sums = 0  # decides which weights the next one compares
    _layouts = 0  # so far
    _scale = 1.0  # of the loss, by a GradScaler
    _refusal = ""  # why the loss of the coming sum must not be in it, as far as this worker knows

    @property
    def _decided_rate(self) -> float:
        """What the guard leaves of the script's learning rate."""
        return 1.0

    @property
    def _follows(self) -> bool:
        """Whether this worker is in no sum yet: it takes those of the others, and is to do the same as they do."""
        return False

    @property
    def _leads(self) -> bool:
        """Whether this worker does what one worker does for all, such as checkpoints."""
        return self.rank == self._exchange.leader

    @property
    def _has_local(self) -> bool:
        """Whether the script has added gradients that are in no sum yet."""
        return self._exchange.has_local

    @abstractmethod
    def _before_sum(self, kind: str) -> None:
        """Before the sum with which this worker does `kind`: others may be in another one (gathers.py)."""

    def _doing(self, kind: str) -> Doing:
        setting = self._setting() + (f" loss scale {self._scale:g}" if self._scale != 1 else "")
        if self._decided_rate != 1:
            setting += f" guard's factor on the learning rate {self._decided_rate!r}"
        place = f"epoch {self._cursor.epoch}, sample {self._cursor.position}, seed {self._stream.seed}"
        if self._cursor.owed:
            place += f", owed {' '.join(f'{one.epoch}:{one.begin}-{one.end}' for one in self._cursor.owed)}"
        if self._stream.pass_code:
            place += f", {DRAWN} {self._stream.pass_code:08x}"
        return Doing(kind, self.iteration, self._steps, self._layout_code(), place, setting, self._refusal)

    def _announce(self, kind: str) -> None:
        """Make sure that all workers are about to do `kind`. Collective.

        Raises TrainingError, on every worker, if another one does something else, be it the sum of its gradients.
        """
        if self._comm.size == 1:
            return
        mine = Contribution(
            samples=0,
            loss=0.0,
            correct=math.nan,
            grad_sq=math.nan,
            plan_version=self._switch.newest_scheduled.version,
            waited_s=0.0,
            doing=self._doing(kind).code(),
            weights=self._sample_weights(self._sums),
            stream=self._stream.report(used=False),
        )
        self._before_sum(kind)
        view = self._exchange.announce(mine, lambda waited_s: self._stall.waiting(self.iteration, waited_s))
        self._sums += 1
        self._check_agreement(view, kind)
        self._stream.told(view.stream, view.present)

    def agree(self, what: str) -> None:
        """Wait until all workers are about to do `what`, before a sum that is not one of gradients. Collective.

        Raises TrainingError, on every worker, if another one does something else.
        """
        self._announce(what)

    def _check_agreement(self, view: GlobalView, kind: str) -> None:
        """Raises TrainingError, the same on all workers, unless all do the same with the same weights."""
        doing: Sequence[int] = view.doing
        weights: Sequence[Sequence[float]] = view.weights
        if len(present := view.present) < self.size:
            doing = [doing[rank] for rank in present]
            weights = [[part[rank] for rank in present] for part in weights]
        if self._follows:
            own = self._exchange.as_summed(self._sample_weights(self._sums - 1))
            weights = [[*part, mine] for part, mine in zip(weights, own, strict=True)]
        self._check_codes(doing, kind)
        if weights_differ(weights, self._weights_tolerance()):
            raise self._disagreement(kind)
        if self._refusal:
            raise refused_loss({present[0]: self._doing(kind)})

    def _check_codes(self, codes: Sequence[int], kind: str) -> None:
        """Raises TrainingError, the same on all workers, unless these codes of what each does are the same.

        `kind`: what this worker does.
        """
        if self._follows:
            codes = [*codes, self._doing(kind).code()]
        if codes.count(codes[0]) != len(codes):
            raise self._disagreement(kind)

    def _disagreement(self, kind: str) -> TrainingError:
        """The error that all workers raise, once they have told each other what they do."""
        if self._follows:
            return TrainingError(
                f"this worker follows the others until it enters, and is not where they are: {self._doing(kind)}; "
                "run.register() all that the script changes beside model and optimizer, such as schedulers"
            )
        mine = Account(self._doing(kind), self._described_parameters(), self._all_weights())
        told = self._comm.gather_present(f"{self._prefix}.account", mine.pack())
        accounts = {rank: Account.unpack(one) for rank, one in told.items()}
        return disagreement(accounts, self._weights_tolerance())

    def _follow_parameters(self, before_forward: bool) -> None:
        """Lay the buckets out anew if the script has changed what is trained: on all workers in the same iteration.

        New parameters take the leader's values while the script has not computed with them yet (`before_forward`);
        afterwards they must be equal.
        """
        if not self._parameters_changed():
            return
        added = self._lay_out()
        self._announce(LAYOUT)
        self._layouts += 1
        exchange = self._make_exchange(f"{self._prefix}.layout{self._layouts}")
        left = exchange.take_over(self._exchange)
        self._exchange = exchange
        self._check_left(left)
        if added and self.size > 1:
            key = f"{self._prefix}.layout{self._layouts}.added"
            values = self._comm.broadcast(key, self._pack_parameters(added) if self._leads else b"", self._leads)
            if before_forward:
                self._unpack_parameters(added, values)
            else:
                self._check_added(added, values)

    def _check_left(self, names: list[str]) -> None:
        """Raises TrainingError, on all workers, if parameters are trained no more but would be in the next sum."""
        told = self._comm.gather_present(f"{self._prefix}.layout{self._layouts}.left", "\n".join(names).encode())
        if found := sorted({name for one in told.values() for name in one.decode().splitlines()}):
            raise TrainingError(
                "parameters that are no longer trained have gradients of earlier batches that are in no sum yet: "
                f"{', '.join(found)}; freeze or replace them after optimizer.step(), or call zero_grad() first"
            )

    def _check_added(self, added: list[str], values: bytes) -> None:
        """Raises TrainingError, on all workers, unless these new parameters are equal."""
        told = self._comm.gather_present(
            f"{self._prefix}.layout{self._layouts}.equal", bytes([self._pack_parameters(added) == values])
        )
        if odd := [rank for rank, equal in told.items() if equal != b"\x01"]:
            raise TrainingError(
                f"new parameters ({', '.join(added)}) have other values on worker "
                f"{', '.join(map(str, odd))} than on worker 0, and the batch of iteration {self.iteration} was "
                "computed with them; add them before the loop asks for the batch, then all take those of worker 0"
            )
