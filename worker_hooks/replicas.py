"""The replicas of the models: all have the same parameters in the same layout, also where the script changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.agreement import LAYOUT

if TYPE_CHECKING:
    from worker_hooks.adapter import Adapter
    from worker_hooks.data import Data
    from worker_hooks.session import Session
    from worker_hooks.sums import Sums


class Replicas:
    """The replica of this worker, beside those of the others.

    Attributes:
        layouts: how often the buckets were laid out anew.
    """

    def __init__(self, session: Session, adapter: Adapter, data: Data, sums: Sums) -> None:
        self._session, self._comm, self._adapter, self._data, self._sums = session, session.comm, adapter, data, sums
        self.layouts = 0

    def follow_parameters(self, before_forward: bool) -> None:
        """Lay the buckets out anew if the script has changed what is trained: on all workers in the same iteration.

        New parameters take the leader's values while the script has not computed with them yet (`before_forward`);
        afterwards they must be equal.
        """
        adapter, sums = self._adapter, self._sums
        if not adapter.parameters.changed():
            return
        if refused := adapter.refused_change(before_forward):
            sums.announce("changes parameters after the batch was handed out")
            raise TrainingError(refused)
        added = adapter.lay_out(self._data.source)
        sums.announce(LAYOUT)
        self.layouts += 1
        key = f"{sums.prefix}.layout{self.layouts}"
        exchange = adapter.make_exchange(key, self._session)
        left = exchange.take_over(sums.exchange)
        sums.exchange = exchange
        self._check_left(left, f"{key}.left")
        if added and self._session.workers.count > 1:
            own = adapter.parameters.pack(added) if sums.leads else b""
            values = self._comm.broadcast(f"{key}.added", own, sums.leads)
            if before_forward:
                adapter.parameters.unpack(values)
            else:
                self._check_added(added, values, f"{key}.equal")

    def _check_left(self, names: list[str], key: str) -> None:
        """Raises TrainingError, on all workers, if parameters are trained no more but would be in the next sum."""
        told = self._comm.gather_present(key, "\n".join(names).encode())
        if found := sorted({name for one in told.values() for name in one.decode().splitlines()}):
            raise TrainingError(
                "parameters that are no longer trained have gradients of earlier batches that are in no sum yet: "
                f"{', '.join(found)}; freeze or replace them after optimizer.step(), or call zero_grad() first"
            )

    def _check_added(self, added: list[str], values: bytes, key: str) -> None:
        """Raises TrainingError, on all workers, unless these new parameters are equal."""
        told = self._comm.gather_present(key, bytes([self._adapter.parameters.pack(added) == values]))
        if odd := [rank for rank, equal in told.items() if equal != b"\x01"]:
            raise TrainingError(
                f"new parameters ({', '.join(added)}) have other values on worker {', '.join(map(str, odd))} than on "
                f"worker 0, and the batch of iteration {self._sums.progress.iteration} was computed with them; add "
                "them before the loop asks for the batch, then all take those of worker 0"
            )
