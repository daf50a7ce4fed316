"""Random schedules of the reference plane (tests/models/membership): workers and servers die, leave and come."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.models.membership.exchange import Exchange
from tests.models.membership.recorded import Recorder

ROUNDS = 5


@dataclass
class Worker:
    """One life of a program of ROUNDS rounds."""

    name: int
    rank: int
    exchange: Exchange
    round: int = 0  # that it has not completed
    to_push: list[int] | None = None  # buffers that are left in this round
    known: set[int] = field(default_factory=set)  # members as of the last decision, and who has come since
    told_lost: set[int] = field(default_factory=set)  # servers
    without: bool = False  # the last decision was that who comes is lost again
    last_round: int = ROUNDS
    waits: bool = False  # for its first round
    over: bool = False
    sums: dict[int, frozenset[int]] = field(default_factory=dict)  # contributors, by round


class Job:
    """One schedule."""

    def __init__(self, seed: int, recorder: Recorder) -> None:
        self.rng, self.recorder, self.counts = random.Random(seed), recorder, Counter[str]()
        recorder.begin(seed)
        self.servers = range(self.rng.randint(1, 3))
        self.pieces = [self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 3))]
        self.tables = [recorder.table() for _ in self.servers]
        self.founders = self.rng.randint(2, 4)
        self.workers: list[Worker] = []
        for rank in range(self.founders):
            self.workers.append(self._new(rank))
            self.workers[rank].known = set(range(self.founders))
            if rank and self.rng.random() < 0.15:
                self.workers[rank].last_round = self.rng.randrange(ROUNDS - 1)
        self.slow = self.rng.randrange(self.founders)
        self.members = set(range(self.founders))
        self.channels: defaultdict[tuple[str, int, int], deque[Any]] = defaultdict(deque)  # way, worker, server
        self.dead_servers: set[int] = set()
        self.lost: set[int] = set()  # servers of which the coordinator knows that they are dead
        self.unnoticed: list[int] = []  # dead workers
        self.generation = 0
        self.phase = ""  # of the change under way
        self.to_tell: set[int] = set()  # workers or servers, in this phase
        self.named: list[int] = []
        self.late: Worker | None = None
        self.entry = -1  # its first round

    def _new(self, rank: int) -> Worker:
        exchange = self.recorder.exchange(rank, self.pieces, self.founders, len(self.servers))
        return Worker(len(self.workers), rank, exchange)

    def run(self) -> None:
        """Until all are through. Raises AssertionError if they get stuck, or see different sums."""
        for _ in range(20_000):
            active = [w for w in self.workers if not w.over and not w.waits]
            if all(worker.round == ROUNDS for worker in active):
                return self.check(active)
            waiting = [channel for channel, messages in self.channels.items() if messages]
            what, worker = self.rng.random(), self.rng.choice(active)
            if what < 0.4 and self.hurries(worker.name):
                self.act(worker)
            elif 0.4 < what < 0.9 and waiting:
                channel = self.rng.choice(waiting)
                if self.hurries(channel[1]):
                    self.deliver(channel)
            elif what > 0.9:
                self.coordinate()
            self.disturb(active)
        raise AssertionError("stuck")

    def hurries(self, worker: int) -> bool:
        """One worker is slow."""
        return worker != self.slow or self.rng.random() < 0.2

    def check(self, active: list[Worker]) -> None:
        for number in range(ROUNDS):
            seen = {worker.sums[number] for worker in active if number in worker.sums}
            assert len(seen) <= 1, f"round {number} has the contributors {seen}"

    def disturb(self, active: list[Worker]) -> None:
        often = 10 if len({worker.round for worker in active}) > 1 else 1
        if self.rng.random() < 0.003 * often:
            stays = [w for w in active if w.last_round == ROUNDS]
            worker = self.rng.choice(active)
            if worker.round < ROUNDS and (len(stays) > 1 or worker.last_round < ROUNDS):
                self.kill(worker)
        if self.rng.random() < 0.001 * often and len(self.dead_servers) + 1 < len(self.servers):
            self.kill_server(self.rng.choice([s for s in self.servers if s not in self.dead_servers]))
        if self.rng.random() < 0.01:
            self.vote()

    # Workers.

    def act(self, worker: Worker) -> None:
        if worker.round == ROUNDS:
            return
        if worker.to_push is None:
            worker.to_push = self.rng.sample(range(len(self.pieces)), len(self.pieces))
        if worker.to_push:
            number = worker.to_push.pop()
            worker.exchange.push(number, (worker.name, worker.round, number))
            self.send(worker)
        elif (sums := worker.exchange.wait()) is not None:
            seen = {frozenset(name for name, _, _ in values) for values in sums.values()}  # type: ignore[misc]
            (worker.sums[worker.round],) = seen
            self.next_round(worker)

    def next_round(self, worker: Worker) -> None:
        before = self.contributors(worker)
        worker.round, worker.to_push = worker.round + 1, None
        if worker.round > worker.last_round:
            worker.over = True
            self.members.discard(worker.name)
            self.counts["leaves"] += 1
            return
        if worker.round == self.entry and self.late:
            self.admit(worker, self.late)
        if self.contributors(worker) != before:
            worker.exchange.expect(self.contributors(worker))

    def contributors(self, worker: Worker) -> int:
        return sum(self.workers[name].last_round >= worker.round for name in worker.known)

    def admit(self, worker: Worker, late: Worker) -> None:
        if late.waits:  # this worker is the first that is there
            late.waits = False
            late.round, late.known, late.told_lost = worker.round, worker.known | {late.name}, set(self.lost)
            if self.phase or self.unnoticed:  # it knows no round that it could name
                self.kill(late)
            else:
                late.exchange.enter(self.generation, late.round, self.contributors(late), self.lost)
                self.members.add(late.name)
                self.counts["entries"] += 1
        if not worker.without:
            worker.known.add(late.name)

    def vote(self) -> None:
        """All agree on who comes in the place of a dead worker, and when."""
        ranks = [self.workers[name].rank for name in range(self.founders) if name not in self.members]
        first = 1 + max((self.workers[name].round for name in self.members), default=ROUNDS)
        if ranks and first < ROUNDS and not (self.late or self.phase or self.unnoticed):
            self.late, self.entry = self._new(self.rng.choice(ranks)), first
            self.late.waits = True
            self.workers.append(self.late)

    # The network.

    def send(self, worker: Worker) -> None:
        for server, push in worker.exchange.outgoing:
            if server not in self.dead_servers:
                self.channels["to", worker.name, server].append(push)
        worker.exchange.outgoing.clear()

    def deliver(self, channel: tuple[str, int, int]) -> None:
        way, name, server = channel
        message = self.channels[channel].popleft()
        if way == "from":
            self.counts["void"] += message.generation < self.generation
            self.workers[name].exchange.take(server, message)
            return
        alive = {worker.rank: worker for worker in self.workers if not worker.over}
        for rank, answer in self.tables[server].push(self.workers[name].rank, message):
            if rank in alive:
                self.channels["from", alive[rank].name, server].append(answer)

    def cut_short(self, channel: tuple[str, int, int]) -> None:
        """Of what a dead process has sent, only the beginning arrives."""
        for _ in range(self.rng.randint(0, len(self.channels[channel]))):
            self.channels[channel].pop()

    def kill(self, worker: Worker) -> None:
        worker.over = True
        self.unnoticed.append(worker.name)
        self.counts["deaths"] += 1
        for server in self.servers:
            self.channels["from", worker.name, server].clear()
            self.cut_short(("to", worker.name, server))

    def kill_server(self, server: int) -> None:
        self.dead_servers.add(server)
        self.counts["server deaths"] += 1
        for worker in self.workers:
            self.channels["to", worker.name, server].clear()
            self.cut_short(("from", worker.name, server))

    # The coordinator.

    def coordinate(self) -> None:
        left = [server for server in self.servers if server not in self.lost]
        for name in list(self.members - set(self.unnoticed)):
            worker = self.workers[name]
            cut_off = worker.exchange.unanswered() & worker.told_lost
            if any(not self.channels["from", name, server] for server in cut_off):
                self.counts["cut off"] += 1
                self.kill(worker)
        if self.unnoticed or self.lost != self.dead_servers:
            self.members -= set(self.unnoticed)
            self.lost |= self.dead_servers
            self.unnoticed, self.named = [], []
            self.generation += 1
            self.phase, self.to_tell = "freeze", set(self.members)
        elif self.phase and self.to_tell:
            one = self.rng.choice(sorted(self.to_tell))
            self.to_tell.discard(one)
            self.tell(one)
        elif self.phase == "freeze" and self.named:
            self.phase, self.to_tell = "fence", set(left)
        elif self.phase == "fence":
            self.phase, self.to_tell = "resume", set(self.members)
            self.counts["decisions"] += 1
            self.counts["apart"] += len(set(self.named)) > 1
        elif self.phase:
            self.phase = ""
        elif self.rng.random() < 0.2:
            self.tables[self.rng.choice(left)].missing({self.workers[name].rank for name in self.members})

    def tell(self, who: int) -> None:
        if self.phase == "fence":
            self.tables[who].fence(self.generation, max(self.named))
            return
        worker = self.workers[who]
        if worker.over:
            return
        if self.phase == "freeze":
            self.named.append(worker.exchange.freeze().first_incomplete)
            assert self.named[-1] == worker.round
            return
        worker.known = set(self.members)
        worker.told_lost = set(self.lost)
        worker.without = self.late is not None and not self.late.waits and self.late.name not in self.members
        decision = self.generation, max(self.named), self.contributors(worker), self.lost
        try:
            worker.exchange.resume(*decision)
        except ValueError:  # nobody waits for who leaves
            assert worker.last_round < max(self.named)
            return self.kill(worker)
        self.send(worker)
        with suppress(ValueError):
            worker.exchange.resume(*decision)
        assert not worker.exchange.outgoing, "each generation comes once"


def play(seed: int, recorder: Recorder) -> None:
    """One schedule. Raises AssertionError if the job gets stuck, or workers see different sums."""
    Job(seed, recorder).run()
