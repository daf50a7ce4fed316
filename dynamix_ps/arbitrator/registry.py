"""Which workers exist and which are alive: leases and incarnations. Pure; time is passed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dynamix_ps.messages import PeerStatus
from dynamix_ps.rpc.refusals import MalformedMessageError, StaleIncarnationError, UnknownWorkerError

LARGEST_RETIRED = 10_000  # replaced processes; restarts alone never cause more (chosen by us)


@dataclass(slots=True)
class _Entry:
    incarnation: str
    heard_s: float
    iteration: int = 0
    left: bool = False
    lost: bool = False


class Registry:
    """Leases of the workers 0..n_workers-1.

    A worker is *absent* when it has left, is lost, or its lease of `lease_s` has run out. The lease of a worker that
    never registered starts with the first registration of any worker. So the first decision waits for all workers.

    All `now_s` are seconds of one monotonic clock.
    """

    def __init__(self, n_workers: int, lease_s: float, retired: Iterable[tuple[int, str]] = ()) -> None:
        self._n_workers = n_workers
        self._lease_s = lease_s
        self._entries: dict[int, _Entry] = {}
        self._retired = set(retired)
        self._lost: set[int] = set()  # ranks; until another process takes the place
        self._first_s: float | None = None

    def register(self, rank: int, incarnation: str, now_s: float) -> bool:
        """Add a worker, or replace its earlier process. Returns whether this incarnation is new here.

        Raises:
            MalformedMessageError: no such worker.
            StaleIncarnationError: it was replaced before, or workers were replaced too often.
        """
        self._check(rank, incarnation)
        if self._first_s is None:
            self._first_s = now_s
        known = self._entries.get(rank)
        if known is not None and known.incarnation == incarnation:
            known.heard_s, known.left = now_s, False
            return False
        if len(self._retired) >= LARGEST_RETIRED:
            raise StaleIncarnationError(
                f"worker {rank}: the workers of this run were replaced {len(self._retired)} times; start a new run"
            )
        if known is not None:
            self._retired.add((rank, known.incarnation))
        self._entries[rank] = _Entry(incarnation, now_s)
        self._lost.discard(rank)
        return True

    def heard(self, rank: int, incarnation: str, now_s: float, iteration: int = 0) -> bool:
        """Renew a lease. Returns whether it had run out.

        Raises:
            MalformedMessageError, UnknownWorkerError, StaleIncarnationError: the caller does not hold this rank.
        """
        entry = self._entry(rank, incarnation)
        entry.heard_s = now_s
        entry.iteration = max(entry.iteration, iteration)
        back, entry.lost = entry.lost, False
        return back

    def leave(self, rank: int, incarnation: str) -> bool:
        """Mark a worker as done. Returns whether that is new. Raises what `heard` raises."""
        entry = self._entry(rank, incarnation)
        new, entry.left = not entry.left, True
        return new

    def lose(self, rank: int) -> None:
        """The job goes on without this worker. No decision waits for its place until another process takes it."""
        self._lost.add(rank)

    def expire(self, now_s: float) -> tuple[int, ...]:
        """Ranks whose lease ran out since the last call."""
        lost = []
        for rank, entry in self._entries.items():
            if not entry.left and not entry.lost and rank not in self._lost and now_s - entry.heard_s > self._lease_s:
                entry.lost = True
                lost.append(rank)
        return tuple(sorted(lost))

    def live(self) -> frozenset[int]:
        """Ranks that are registered, have not left and hold a lease (as of the last `expire`)."""
        live = (rank for rank, entry in self._entries.items() if not entry.left and not entry.lost)
        return frozenset(live) - self._lost

    def absent(self, now_s: float) -> frozenset[int]:
        """Ranks that a decision does not wait for."""
        gone = {rank for rank, entry in self._entries.items() if entry.left or entry.lost}
        if self._first_s is not None and now_s - self._first_s > self._lease_s:
            gone |= set(range(self._n_workers)) - set(self._entries)
        return frozenset(gone | self._lost)

    def peers(self, now_s: float) -> tuple[PeerStatus, ...]:
        """The last known state of every registered worker."""
        return tuple(
            PeerStatus(
                rank=rank,
                iteration=entry.iteration,
                silent_s=max(0.0, now_s - entry.heard_s),
                alive=not entry.left and rank not in self._lost and now_s - entry.heard_s <= self._lease_s,
            )
            for rank, entry in sorted(self._entries.items())
        )

    def _entry(self, rank: int, incarnation: str) -> _Entry:
        self._check(rank, incarnation)
        entry = self._entries.get(rank)
        if entry is None or entry.incarnation != incarnation:
            raise UnknownWorkerError(f"worker {rank} is not registered here; register first")
        return entry

    def _check(self, rank: int, incarnation: str) -> None:
        if not 0 <= rank < self._n_workers:
            raise MalformedMessageError(
                f"rank: got {rank}, expected 0..{self._n_workers - 1} (the workers of the cluster file)"
            )
        if (rank, incarnation) in self._retired:
            raise StaleIncarnationError(
                f"worker {rank}: incarnation {incarnation!r} was replaced by a later process of this rank; stop it"
            )
