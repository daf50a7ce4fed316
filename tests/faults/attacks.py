"""What another user of the machine, without the token, does to a port or socket of a run, and what comes of it.

docs/security.md shows this table, and every row is a test. A test module runs the rows of its places: it takes them
from `attacks_at` as parameters, with their keys as ids. stranger.py does what the rows say.
"""

from __future__ import annotations

from dataclasses import dataclass

GRPC = "arbitrator (gRPC)"
ARBITRATOR = "port of the arbitrator"
METRICS = "metrics (HTTP)"
PROBE = "network probe (Unix socket)"
DATA_PLANE = "data plane (`comm: byteps`, every role)"
STORE = "store of workers (`comm: gloo`)"
NEWCOMER = "newcomer of an elastic job (`comm: byteps`)"
WORKER_FILES = "sockets and shared memory of a worker"

TESTS = {  # the module that runs the rows of a place
    GRPC: "tests/faults/test_control_plane_attacks.py",
    ARBITRATOR: "tests/faults/test_control_plane_attacks.py",
    METRICS: "tests/faults/test_control_plane_attacks.py",
    PROBE: "tests/faults/test_control_plane_attacks.py",
    DATA_PLANE: "tests/faults/test_data_plane_attacks.py",
    STORE: "tests/faults/test_data_plane_attacks.py",
    NEWCOMER: "tests/faults/test_newcomer_attacks.py",
    WORKER_FILES: "tests/faults/test_data_plane_attacks.py",
}


@dataclass(frozen=True, slots=True)
class Attack:
    """One row. `key` is the id of its test; `at` the port or socket."""

    key: str
    at: str
    does: str
    outcome: str


_SUMS_RIGHT = "sums stay right, the job ends well, one line in the log"
_NOTHING_LATE = "workers register, report and get their plans in time"
_STATE_WHOLE = "the newcomer gets the state"
_NO_TOKEN = "nothing that roles send has the token, and what is no proven answer is not used"
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
    Attack(
        "calls-without-pause",
        GRPC,
        "greets without pause, and registers with guessed proofs",
        f"refused, and no greeting is remembered; {_NOTHING_LATE}",
    ),
    Attack("garbage", GRPC, "sends bytes that are not HTTP/2", f"the connection is closed; {_NOTHING_LATE}"),
    Attack("large-calls", GRPC, "sends 1 MiB of metadata, and messages of 64 MiB", f"refused unread; {_NOTHING_LATE}"),
    Attack(
        "impostor-before-the-start",
        ARBITRATOR,
        "listens at its port before the arbitrator does, and answers with plans",
        f"{_NO_TOKEN}; the worker says so once",
    ),
    Attack(
        "impostor-after-a-crash",
        ARBITRATOR,
        "takes its port when the arbitrator has been killed, and answers with plans",
        f"{_NO_TOKEN}; the worker says so once, and goes on with the arbitrator when that is back",
    ),
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
    Attack(
        "role-garbage", DATA_PLANE, "sends bytes that are not its protocol", f"the connection is closed; {_SUMS_RIGHT}"
    ),
    Attack("role-zeromq", DATA_PLANE, "greets as ZeroMQ does", f"the connection is closed; {_SUMS_RIGHT}"),
    Attack(
        "role-no-proof",
        DATA_PLANE,
        "sends messages without a proof of the token: end, new node, barrier, push to a known and to an unknown key, "
        "a push of 2^39 bytes, pull, half a message",
        f"the connection is closed and nothing of them is looked at; {_SUMS_RIGHT}",
    ),
    Attack("role-wrong-token", DATA_PLANE, "guesses the token", f"refused; {_SUMS_RIGHT}"),
    Attack(
        "role-messages-after-a-wrong-token",
        DATA_PLANE,
        "sends the same messages together with a guess",
        f"refused and nothing of them is looked at; {_SUMS_RIGHT}",
    ),
    Attack("role-replay", DATA_PLANE, "repeats what a role said on another connection", f"refused; {_SUMS_RIGHT}"),
    Attack("role-mirrored-proof", DATA_PLANE, "sends a proof of the accepting side back", f"refused; {_SUMS_RIGHT}"),
    Attack("role-half-a-greeting", DATA_PLANE, "leaves in the middle of its proof", _SUMS_RIGHT),
    Attack(
        "role-idle-connections",
        DATA_PLANE,
        "holds 400 connections open, where a role may open 256 files",
        f"the oldest are closed, the others after 10 s; {_SUMS_RIGHT}",
    ),
    Attack(
        "role-no-descriptor-left",
        DATA_PLANE,
        "connects when a role cannot open any more files",
        "the role says so once, accepts again when it can; sums stay right",
    ),
    Attack(
        "role-flood-at-start",
        DATA_PLANE,
        "connects without pause while the roles look for each other",
        "the roles find each other; sums stay right",
    ),
    Attack(
        "role-impostor",
        DATA_PLANE,
        "listens at the port of the scheduler",
        "roles send it nothing but their challenge, and stop with the cause",
    ),
    Attack("store-garbage", STORE, "connects 100 times and sends garbage", "sums stay right, the job ends well"),
    Attack(
        "newcomer-idle-connections",
        NEWCOMER,
        "holds 400 connections open",
        f"the oldest are closed, the others after 5 s; {_STATE_WHOLE}",
    ),
    Attack(
        "newcomer-garbage",
        NEWCOMER,
        "connects without pause, sends bytes that are not its protocol, and guesses the token",
        f"the connection is closed; {_STATE_WHOLE}",
    ),
    Attack(
        "newcomer-replay",
        NEWCOMER,
        "repeats what a worker said on another connection",
        f"the connection is closed; {_STATE_WHOLE}",
    ),
    Attack(
        "newcomer-impostor",
        NEWCOMER,
        "listens at its port",
        "the worker that has the state sends it nothing but its proof, which is worthless elsewhere",
    ),
    Attack("worker-files", WORKER_FILES, "opens, reads and sends", "refused by the system: their mode is 0600"),
)


def attacks_at(place: str) -> tuple[Attack, ...]:
    """The rows of one port or socket."""
    return tuple(attack for attack in ATTACKS if attack.at == place)
