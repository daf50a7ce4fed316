"""What another user of the machine, without the token, does to a port or socket of a run, and what comes of it.

docs/security.md shows this table, and every row is a test. A test module runs the rows of its places: it takes them
from `attacks_at` as parameters, with their keys as ids. stranger.py does what the rows say.
"""

from __future__ import annotations

from dataclasses import dataclass

GRPC = "arbitrator (gRPC)"
METRICS = "metrics (HTTP)"
PROBE = "network probe (Unix socket)"

TESTS = {  # the module that runs the rows of a place
    GRPC: "tests/faults/test_control_plane_attacks.py",
    METRICS: "tests/faults/test_control_plane_attacks.py",
    PROBE: "tests/faults/test_control_plane_attacks.py",
}


@dataclass(frozen=True, slots=True)
class Attack:
    """One row. `key` is the id of its test; `at` the port or socket."""

    key: str
    at: str
    does: str
    outcome: str


_NOTHING_LATE = "workers register, report and get their plans in time"
_ANSWERED = "the roles of a run are answered in time"

ATTACKS = (
    Attack("watches", GRPC, "opens 320 health watches", f"refused at once; {_NOTHING_LATE}"),
    Attack("streams", GRPC, "opens 320 streams of plans without the token", f"refused at once; {_NOTHING_LATE}"),
    Attack(
        "half-open-calls",
        GRPC,
        "begins 320 calls whose messages never come",
        f"refused before a message is read; {_NOTHING_LATE}",
    ),
    Attack(
        "idle-connections",
        GRPC,
        "holds 1,500 connections open",
        f"closed after 20 s, files stay free for the journal; {_NOTHING_LATE}",
    ),
    Attack("calls-without-pause", GRPC, "registers without pause with a wrong token", f"refused; {_NOTHING_LATE}"),
    Attack("garbage", GRPC, "sends bytes that are not HTTP/2", f"the connection is closed; {_NOTHING_LATE}"),
    Attack("large-calls", GRPC, "sends 1 MiB of metadata, and messages of 64 MiB", f"refused unread; {_NOTHING_LATE}"),
    Attack(
        "slow-scrapes",
        METRICS,
        "opens 400 connections that ask for the page byte by byte, or never read it",
        f"at most 32 are open, each for 5 s; the page can be had; {_NOTHING_LATE}",
    ),
    Attack(
        "scrapes-without-pause", METRICS, "asks for the page without pause", f"the page is made once; {_NOTHING_LATE}"
    ),
    Attack(
        "endless-requests",
        METRICS,
        "sends requests without end, and bytes that are not HTTP",
        f"dropped after 8 KiB; the page can be had; {_NOTHING_LATE}",
    ),
    Attack(
        "probe-connections",
        PROBE,
        "opens 1,000 connections",
        f"a user has at most 400 of 1,024 places; {_ANSWERED}",
    ),
    Attack(
        "probe-garbage",
        PROBE,
        "sends bytes without end, and asks without taking the answers",
        f"dropped at once or after 5 s; {_ANSWERED}",
    ),
    Attack(
        "probe-requests-without-pause",
        PROBE,
        "asks without pause",
        f"dropped after 500 requests in a second; {_ANSWERED}",
    ),
    Attack(
        "probe-spying",
        PROBE,
        "asks the probe of the host for all connections",
        "sees those of its own processes, by the user id that the kernel tells",
    ),
    Attack(
        "probe-of-a-run",
        PROBE,
        "connects to the probe that a run has started",
        "no permission: its socket has mode 0600",
    ),
)


def attacks_at(place: str) -> tuple[Attack, ...]:
    """The rows of one port or socket."""
    return tuple(attack for attack in ATTACKS if attack.at == place)
