"""A worker's side of rounds over a ring: which ring there is, and what is complete. Events come in, effects come out.

The training thread pushes the parts of a round, waits for their sums, and completes the round. The control plane
freezes, resumes, and changes the members between two rounds. The ring tells what has come of effects: `summed`, `met`,
`spread`, `failed` and `finished`. An event of a ring that was given up is late, and changes nothing. A ring that fails
stays as it is, until the coordinator decides anew: on a loss, or because a worker asks for another ring.

In a change

    1. `freeze` gives the ring up: no result of it counts from then on, whether it completes, fails or hangs
    2. `resume` makes a ring of all members. Each names the first round that it has not completed, T or T-1
    3. if some are at T-1, the lowest rank at T sends them its sums of T-1, which every worker keeps for one round
    4. all make round T of their own values, which are unchanged

So no worker takes the state of another, and no completed round is made twice.

When a worker leaves or joins with a round, the others `expect` these members between two rounds, and make a ring of
them; while another ring is made, this one comes after it. A worker that leaves was complete with its last round on some
and not on others, if a worker is lost then. So the ring of the decision includes it, and one without it follows.

A joiner has the state of the training and not the sums of the round before. So it names no round before it has
completed one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dynamix_ps.membership.sums import SumProgress

Members: TypeAlias = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """The name of a ring: those that give it the same name meet.

    Attributes:
        first_round: T, the round that its members make first; in it, or one behind, are all members.
        members: rank and address of each, in the order of ranks. A rank alone may be another process by now.
    """

    generation: int
    first_round: int
    members: Members


@dataclass(frozen=True, slots=True)
class Meet:
    """Make this ring with its members. First tell the members of `before` that this worker needs that ring no more."""

    ring: Ring
    before: Ring | None = None


@dataclass(frozen=True, slots=True)
class StartSum:
    """Start the sum of this part of the open round: 0 is its first push. All members start theirs in this order."""

    ring: Ring
    part: int


@dataclass(frozen=True, slots=True)
class SpreadKept:
    """All members: one sends its kept sums, those of the round before T.

    Attributes:
        sender: its index among the members.
        receives: this worker takes them as the sums of its open round. If not, it only passes them on.
    """

    ring: Ring
    sender: int
    receives: bool


Effect: TypeAlias = Meet | StartSum | SpreadKept


class RingWorker:
    """The rounds of one worker. Not thread safe.

    Args:
        rank: of this worker.
        ring: of the workers that the job begins with, who may not know each other's addresses; None: a joiner.

    Attributes:
        round: the first that is not complete.
        ring: in which rounds are made; None: none completes.
        making: the ring that is being made.
        is_broken: a sum in `ring`, or `making`, has failed, so no round completes.
        released: of a worker that departs, the newest ring. Tell its members that this worker needs it no more.
        departed: no other worker needs this one.
    """

    def __init__(self, rank: int, ring: Ring | None) -> None:
        self.rank = rank
        self.round = 0
        self.ring = ring
        self.making: Ring | None = None
        self.is_broken = self.departed = False
        self.released: Ring | None = None
        self._generation = 0
        self._summed: list[bool] = []  # by part of the open round
        self._first_handle = 0  # of the open round
        self._addresses: Members = ()  # of the next generation
        self._staying: Members = ()  # those of them with whom rounds go on
        self._departs = False

    # The training thread.

    def push(self) -> tuple[int, list[Effect]]:
        """One more part of the open round. Returns its handle too. Without a ring, its sum starts in the next one."""
        part = len(self._summed)
        self._summed.append(False)
        return self._first_handle + part, [] if self.ring is None else [StartSum(self.ring, part)]

    def is_complete(self, handle: int) -> bool:
        """Whether the round of this push is complete."""
        return handle < self._first_handle

    @property
    def is_held(self) -> bool:
        """Whether no round completes now."""
        return self.ring is None or self.is_broken

    def next_part(self) -> int | None:
        """The first part of the open round that is not summed; None: `complete` is next, unless the round is held."""
        return self._summed.index(False) if False in self._summed else None

    def complete(self) -> None:
        """The open round is complete: all its parts are summed, and it is not held. Its sums are kept for one round."""
        assert not self.is_held and all(self._summed), "somebody may have named this round as incomplete"
        self._first_handle += len(self._summed)
        self._summed = []
        self.round += 1

    # The ring.

    def summed(self, ring: Ring, part: int) -> None:
        """The sum of this part of the open round is complete."""
        if ring == self.ring:
            self._summed[part] = True

    def failed(self, ring: Ring) -> None:
        """A sum in this ring has failed, or its making: a member is gone, or a connection has broken."""
        self.is_broken |= ring in (self.ring, self.making)

    def met(self, ring: Ring, rounds: Sequence[int]) -> list[Effect]:
        """All members are there, and have named the first round that each has not completed, in the order of ranks."""
        if ring != self.making:
            return []
        if min(rounds) < ring.first_round:
            return [SpreadKept(ring, rounds.index(ring.first_round), self.round < ring.first_round)]
        return self._made(ring)

    def spread(self, ring: Ring) -> list[Effect]:
        """`SpreadKept` has ended on this worker."""
        return self._made(ring) if ring == self.making else []

    def finished(self, ring: Ring) -> None:
        """All members say that they need the ring no more. That holds in a change, too, where it was given up."""
        self.departed |= ring == self.released

    def _made(self, ring: Ring) -> list[Effect]:
        is_behind = self.round < ring.first_round
        if not is_behind and self._staying != ring.members:
            return self._make(ring.first_round, self._staying, ring)
        self.ring, self.making = ring, None
        if self._departs:
            self.released = ring
        if is_behind:
            self._summed = [True] * len(self._summed)
            return []
        return [StartSum(ring, part) for part in range(len(self._summed))]

    # The control plane: as in `WorkerPlane`.

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """Workers that are behind complete a round in a ring of all members; a ring of those that stay follows."""
        self._addresses = tuple(sorted(addresses.items()))
        self._staying = tuple((rank, address) for rank, address in self._addresses if rank not in leaving)

    def status(self) -> SumProgress:
        """How far the sums are."""
        return SumProgress(self.round)

    def freeze(self) -> SumProgress:
        """Let no round complete from now on, until `resume`. Sums that the ring has made do not count any more."""
        self._give_up()
        return self.status()

    def resume(
        self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]
    ) -> list[Effect]:
        """Raises ValueError if this worker is neither in this round nor one behind, or has had this generation."""
        assert len(self._staying) == contributions, "the coordinator has named the members"
        if generation <= self._generation or round_number - self.round not in (0, 1):
            raise ValueError(
                f"cannot resume with generation {generation} at round {round_number}: this worker is at round "
                f"{self.round}, and each generation comes once"
            )
        self._generation = generation
        return self._make(round_number, self._addresses)

    def expect(self, contributions: int) -> list[Effect]:
        """From the next round on, go on with the members of the last `meet`: workers have left or join.

        Called between two rounds. Does nothing if a decision on losses includes this change already. If another ring is
        being made, the ring of these members comes after it.
        """
        assert len(self._staying) == contributions and not self._summed, "between two rounds"
        before = self.ring
        if before is None or self._staying == before.members:
            return []
        return self._make(self.round, self._staying, before)

    def enter(
        self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]
    ) -> tuple[int, list[Effect]]:
        """Returns the next round: only who has completed a round has sums that others may lack."""
        assert len(self._staying) == contributions, "the one that gives the state has named the members"
        self._generation, self.round = generation, round_number
        return round_number + 1, self._make(round_number, self._staying)

    def depart(self) -> None:
        """The last round of this worker is complete: it is in the ring, and in those that follow, until `departed`."""
        self._departs, self.released = True, self.ring

    @property
    def waits(self) -> bool:
        """Whether something of the other members is due."""
        return self.making is not None or (self.ring is not None and bool(self._summed))

    def others(self) -> dict[int, str]:
        """The other members of the ring that is there or being made whose addresses are known, by rank."""
        newest = self.making or self.ring
        members = newest.members if newest else ()
        return {rank: address for rank, address in members if address and rank != self.rank}

    def _give_up(self) -> None:
        """Give up the ring, and also a ring that is being made."""
        self.ring = self.making = None
        self.is_broken = False
        self._summed = [False] * len(self._summed)

    def _make(self, first_round: int, members: Members, before: Ring | None = None) -> list[Effect]:
        """Make a ring in place of any other."""
        self._give_up()
        self.making = Ring(self._generation, first_round, members)
        return [Meet(self.making, before)]
