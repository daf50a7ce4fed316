"""A ring of workers over gloo, with fixed members: sums in place, broadcasts, and the two halves of a sum for bytes.

Every worker has a store in its own process, in which others can meet, and announces its address. The members of a ring
meet in the store of the lowest rank. So no process has to outlive the others, and the addresses travel with the first
decision on the members. If the lowest rank is lost too, the next ring meets in another store.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from dynamix_ps.comm.ring.stores import CONNECT_S, TRY_S, reach_store

_LOOK_S = 0.5  # a wait for the others sees so often whether it is to end
_PAUSE_OF_WAIT, _PAUSE_S = 0.05, (0.001, 0.05)  # between two questions to a store: a part of the wait, within limits
_NO_LIMIT = timedelta(days=7)  # of an operation: who is lost, the coordinator says

Over = Callable[[], bool]  # whether nobody needs the ring any more


class Given(Exception):
    """No worker needs the ring any more."""


class RingGroup:
    """The ring. An operation that fails or hangs may write garbage into its buffers, also at any later time."""

    def __init__(self, store: Any, index: int, size: int, timeout: timedelta, with_gpu: bool = False) -> None:
        """Connect.

        The group is in none of torch's tables, so that a script may have a default group of its own.

        Args:
            index: this worker's place among the members in the order of ranks.
            with_gpu: sum GPU tensors too, by NCCL.
        """
        import torch
        from torch.distributed import distributed_c10d as c10d

        gloo = c10d.ProcessGroup.BackendType.GLOO
        backend = c10d.ProcessGroupGloo(store, index, size, timeout)
        self._group = c10d.ProcessGroup(store, index, size)
        self._group._set_default_backend(gloo)
        self._group._register_backend(torch.device("cpu"), gloo, backend)
        self._gloo: Any = backend
        self._nccl = _nccl(self._group, store, index, size, timeout) if with_gpu else None
        self._store, self.index, self.size = store, index, size
        self._sum, self._broadcast = c10d.AllreduceOptions(), c10d.BroadcastOptions()
        self._scatter = c10d.AllToAllOptions()
        self._collect = c10d.AllgatherOptions()  # type: ignore[attr-defined]  # its stubs do not export it
        for options in (self._sum, self._broadcast, self._scatter, self._collect):
            options.timeout = _NO_LIMIT
        if hasattr(self._sum, "asyncOp"):  # from torch 2.7 on; before, NCCL always sums on a stream of its own
            self._sum.asyncOp = True
        self._works: list[Any] = []

    def sum(self, buffer: Any) -> Any:
        """Start the sum of `buffer` over all members, in place. All start their sums in the same order."""
        members = self._group if buffer.is_cuda else self._gloo  # asked at once, gloo takes half the time to start
        return self._started(members.allreduce([buffer], self._sum))

    def scatter(self, rows: Any, received: Any) -> Any:
        """Start: the member with index i gets row i of `rows` of every member. Both have shape (members, values)."""
        return self._started(self._group.alltoall_base(received, rows, [], [], self._scatter))

    def collect(self, own: Any, received: Any) -> Any:
        """Start: every member gets `own` of all. `received` has shape (members, values)."""
        return self._started(self._group.allgather([list(received)], [own], self._collect))

    def _started(self, work: Any) -> Any:
        self._works = [one for one in self._works if not one.is_completed()]
        self._works.append(work)
        return work

    def gather(self, number: int, over: Over) -> list[int]:
        """The numbers that all members pass. Raises Given, and RuntimeError if a member is gone."""
        import torch

        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.index] = number
        _wait_for(self.sum(numbers), over)
        return [int(one) for one in numbers]

    def spread(self, buffers: Sequence[Any], sender: int, over: Over) -> None:
        """Broadcast the values of the member with index `sender` into the buffers of all. Raises like `gather`."""
        self._broadcast.rootRank = sender
        for work in [self._started(self._group.broadcast([buffer], self._broadcast)) for buffer in buffers]:
            _wait_for(work, over)

    def take_down(self) -> None:
        """Wait until all members do so, and end the ring."""
        import torch

        self.sum(torch.zeros(1)).wait()
        if self._nccl is not None:
            end = "shutdown" if hasattr(self._nccl, "shutdown") else "_shutdown"  # so before torch 2.6
            getattr(self._nccl, end)()

    def finish(self) -> None:
        """Tell the members that this worker does not need the ring any more."""
        from torch.distributed import DistError

        with contextlib.suppress(DistError):  # the member with the store is gone
            self._store.set(f"finished {self.index}", "")

    def is_finished(self, timeout_s: float) -> bool | None:
        """Whether all members say within `timeout_s` that they do not need the ring any more.

        None: the member with the store is gone. It waits for the others as well, unless it is lost.
        """
        from torch.distributed import DistNetworkError

        until_s = time.monotonic() + timeout_s
        try:
            names = [f"finished {index}" for index in range(self.size)]
            return _has_all(self._store, names, lambda: time.monotonic() >= until_s)
        except DistNetworkError:
            return None

    @property
    def is_idle(self) -> bool:
        """Whether all operations have ended, one way or the other."""
        return all(work.is_completed() for work in self._works)

    def abandon(self) -> None:
        """Leave the ring standing at the end of the process: taking it down would wait for an operation that hangs."""
        if not self.is_idle:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))


def _nccl(group: Any, store: Any, index: int, size: int, timeout: timedelta) -> Any:
    """Let `group` sum GPU tensors by NCCL, as torch does for groups of its own. Returns what sums."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = c10d.ProcessGroupNCCL(c10d.PrefixStore("cuda", store), index, size, options)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cuda"), c10d.ProcessGroup.BackendType.NCCL, backend)
    return backend


def meet(name: str, rank: int, members: Mapping[int, str], over: Over) -> RingGroup:
    """The ring with this name, when all members have come. `members`: address of the store of each, by rank.

    Raises Given when no worker needs the ring any more, RuntimeError or ConnectionRefusedError if a member is gone.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    order = sorted(members)
    whose = " ".join(f"{other} at {members[other]}" for other in order)  # a rank may be another process by now
    store = PrefixStore(f"{name} of {whose}", _place(members[order[0]], over))
    store.set(f"here {rank}", "")
    if not _has_all(store, [f"here {other}" for other in order], over):
        raise Given
    return RingGroup(store, order.index(rank), len(order), timedelta(seconds=CONNECT_S))


def _place(address: str, over: Over) -> Any:
    """The store in which members meet, also where it cannot be reached for a while."""
    while not over():
        try:
            return reach_store(address)
        except ConnectionRefusedError:
            raise
        except (OSError, RuntimeError):
            time.sleep(TRY_S)
    raise Given


def _has_all(store: Any, names: list[str], over: Over) -> bool:
    """Wait until a store has all these names; False: `over` came first.

    `store.wait` would print two lines each time its limit passes.
    """
    began_s = time.monotonic()
    while not over():
        if store.check(names):
            return True
        waited_s = time.monotonic() - began_s
        time.sleep(min(max(_PAUSE_OF_WAIT * waited_s, _PAUSE_S[0]), _PAUSE_S[1]))
    return False


def is_complete(work: Any, timeout_s: float) -> bool:
    """Whether a sum is complete within so many seconds. Sleeps without the GIL. Raises RuntimeError if it fails."""
    try:
        work.wait(timedelta(seconds=max(timeout_s, 1e-3)))  # 0 means no limit
    except RuntimeError:
        if not work.is_completed():
            return False
        if not work.is_success():  # else it was complete right after the limit had passed
            raise
    return True


def _wait_for(work: Any, over: Over) -> None:
    while not over():
        if is_complete(work, _LOOK_S):
            return
    raise Given
