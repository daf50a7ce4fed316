"""Which servers a worker takes for silent: questions that are answered or not, on a clock that is set."""

from __future__ import annotations

from dynamix_ps.comm.byteps.server_watch import ServerWatch

QUIET_S = 6.0


class Servers:
    """Answers come at once or never."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stopped: set[int] = set()
        self.asked: list[int] = []
        self.watch = ServerWatch(self._echo, lambda: self.now_s)

    def _echo(self, server: int, limit_s: float) -> bool:
        self.asked.append(server)
        came = server not in self.stopped
        self.now_s += 0.0 if came else limit_s
        return came

    def look(self, servers: set[int], until_s: float, progress: object = 0) -> frozenset[int]:
        """Look twice a second; what is found last."""
        found: frozenset[int] = frozenset()
        while self.now_s < until_s:
            found = self.watch.silent(servers, progress, QUIET_S)
            self.now_s += 0.5
        return found


def test_a_server_that_owes_an_answer_for_the_time_is_silent_and_others_are_not() -> None:
    servers = Servers()
    servers.stopped = {1}
    assert servers.look({0, 1, 2}, 5.5) == frozenset()
    assert servers.look({0, 1, 2}, 8.0) == {1}


def test_for_half_of_the_time_nobody_is_asked() -> None:
    servers = Servers()
    servers.look({0, 1}, 3.0)
    assert servers.asked == []
    servers.look({0, 1}, 4.0)
    assert set(servers.asked) == {0, 1}


def test_while_answers_come_a_server_is_only_slow() -> None:
    servers = Servers()
    servers.stopped = {0}
    for turn in range(10):
        assert servers.look({0}, 2.0 * (turn + 1), progress=turn) == frozenset()
    assert servers.asked == []


def test_who_answers_again_is_not_silent() -> None:
    servers = Servers()
    servers.stopped = {1}
    servers.look({1}, 5.0)
    servers.stopped = set()
    assert servers.look({1}, 8.0) == frozenset()
    servers.stopped = {1}
    assert servers.look({1}, 10.0) == frozenset(), "its time begins anew"
    assert servers.look({1}, 13.0) == {1}


def test_who_was_stopped_itself_begins_anew() -> None:
    servers = Servers()
    servers.stopped = {1}
    assert servers.look({1}, 5.0) == frozenset()
    servers.now_s = 60.0
    assert servers.look({1}, 63.0) == frozenset()
    assert servers.look({1}, 68.0) == {1}
