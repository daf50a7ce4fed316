"""What happens to the roles of the soak: which kinds of events there are, and what each does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.studies.membership import soak_limits as limits
from benchmarks.studies.membership import soak_network as network
from benchmarks.studies.membership.soak_site import COORDINATOR, Event, Site
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.run_record.requests import JOIN, LEAVE, request

Act = Callable[[Site, Event], None]
GONE: Final = "gone"  # the others go on without the role; if its process lives, it ends when it hears of that
BACK: Final = "back"  # the worker is in the sums
AGAIN: Final = "again"  # another process is started in its place
SPARED: Final = "spared"  # sums go on when it is over, and nobody is lost by it
Effect = Literal["gone", "back", "again", "spared"]


def _nothing(site: Site, event: Event) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kind:
    """What can happen to a role.

    Attributes:
        what: in words.
        begin: makes it happen.
        effect: what must come of it.
        role: to which it happens.
        lasts: from how many leases to how many. What makes a role go also lasts until it is gone.
        during: called often while it lasts.
        end: what lets the role go on.
    """

    what: str
    begin: Act
    effect: Effect = GONE
    role: str = "worker"
    lasts: tuple[float, float] = (0.0, 0.0)
    during: Act = _nothing
    end: Act = _nothing


def _send(number: signal.Signals) -> Act:
    def send(site: Site, event: Event) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(event.pid, number)

    return send


def _ask(what: str) -> Act:
    def ask(site: Site, event: Event) -> None:
        try:
            request(site.run, what, event.slot)
            site.refused.discard(event.number)
        except EnvironmentNotReady:  # the disk is full, as the command tells its user
            site.refused.add(event.number)

    return ask


def _ask_again(what: str) -> Act:
    return lambda site, event: _ask(what)(site, event) if event.number in site.refused else None


_LONG, _SHORT, _WHILE = (1.5, 3.0), (0.1, 0.3), (1.0, 4.0)
_KILL, _STOP, _GO_ON = map(_send, (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT))
_ON_PROCESSES = {
    "kill": Kind("`kill -9`", _KILL),
    "stop": Kind("stopped for longer than its lease", _STOP, lasts=_LONG, end=_GO_ON),
    "kill-server": Kind("`kill -9` of a server", _KILL, role="server"),
    "stop-server": Kind("a server stopped for longer than its lease", _STOP, role="server", lasts=_LONG, end=_GO_ON),
    "kill-scheduler": Kind("`kill -9` of the scheduler", _KILL, AGAIN, "scheduler"),
    "notice": Kind("leaves by SIGTERM", _send(signal.SIGTERM)),
    "leave": Kind("leaves by `dynamix leave`", _ask(LEAVE), during=_ask_again(LEAVE)),
    "join": Kind("comes back by `dynamix join`", _ask(JOIN), BACK),
}
_ON_LINKS: Mapping[str, tuple[str, Effect, tuple[float, float], Act, Act]] = {
    "cut": ("cut off for longer than its lease", GONE, _LONG, network.unplug, network.plug),
    "mute": ("nothing arrives from it, for longer than its lease", GONE, _LONG, network.mute, network.heal),
    "deaf": ("nothing arrives at it, for longer than its lease", GONE, _LONG, network.deafen, network.heal),
    "blink": ("cut off for less than a third of its lease", SPARED, _SHORT, network.silence, network.heal),
    "flap": ("a link that goes and comes", SPARED, _WHILE, network.flap, network.steady),
    "loss": ("1 to 5 % of its packets are lost, both ways", SPARED, _WHILE, network.lose, network.heal),
    "delay": ("what it sends arrives 20 to 150 ms later", SPARED, _WHILE, network.hold, network.release),
    "twice": ("what it sends arrives twice", SPARED, _WHILE, network.double, network.release),
    "narrow": ("a link of 2 to 8 Mbit/s", SPARED, _WHILE, network.narrow, network.heal),
}
_LIMITS = {
    "memory-server": Kind(
        "a server's control group runs out of memory", limits.take_memory, role="server", end=limits.give_memory
    ),
    "clock-worker": Kind(
        "its clock goes back by an hour, and on again", limits.turn_back, SPARED, lasts=_WHILE, end=limits.turn_on
    ),
    "full-disk": Kind(
        "the disk of the run folder is full", limits.fill_disk, SPARED, COORDINATOR, (0.3, 1.5), end=limits.free_disk
    ),
    "no-journal": Kind(
        "the coordinator can write to no file",
        limits.forbid_writing,
        SPARED,
        COORDINATOR,
        (0.3, 1.5),
        end=limits.allow_writing,
    ),
}
KINDS: Mapping[str, Kind] = {
    **_ON_PROCESSES,
    **_LIMITS,
    **{
        f"{key}-{role}": Kind(what + of, begin, effect, role, lasts, end=end)
        for key, (what, effect, lasts, begin, end) in _ON_LINKS.items()
        for role, of in (("worker", ""), ("server", " (a server)"))
    },
    "cut-coordinator": Kind(
        "the coordinator is cut off for longer than all leases",
        network.unplug,
        SPARED,
        COORDINATOR,
        _LONG,
        end=network.plug,
    ),
}
