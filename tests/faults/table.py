"""What can go wrong, and what comes of it: one row per kind of fault, and every row is a test.

The rows are in the modules *_rows.py, by who is hit; a test module runs each of them, by their keys. Where a test
elsewhere holds exactly the outcome of a row, the row names it. Attacks by others are in attacks.py.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

LIMIT_S = 45.0  # for the end of a job after its fault; far more than it takes, as machines of tests are busy


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of `dynamix launch`, and what its output says (a regular expression). Nothing else is left."""

    exit_code: int
    says: str


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """Worker 1 of two runs `body` in the middle of its training; worker 0 goes on for ever, or ends if all is well."""

    key: str
    body: str
    outcome: Outcome
    trained: bool = True  # whether training has begun when `body` runs
    settings: str = ""  # further lines of the cluster file


@dataclass(frozen=True, slots=True)
class SignalFault:
    """A process of the run gets signals from outside: a role, the launcher, the reaper, or the arbitrator."""

    key: str
    target: str
    signals: tuple[signal.Signals, ...]
    outcome: Outcome
    comm: str = "gloo"
    trained: bool = True
    mode: str = "'off'"
    settings: str = ""
    goes_on: bool = False  # whether workers then end their training well


@dataclass(frozen=True, slots=True)
class Refusal:
    """A launch that cannot work is refused before anything is started. `FILE` in the outcome is the cluster file."""

    key: str
    content: bytes
    outcome: Outcome
    arguments: tuple[str, ...] = ("--", "python", "-c", "pass")


@dataclass(frozen=True, slots=True)
class SurroundingsFault:
    """Disk, terminal, clock or limits of the machine; the test with this key says how they are made."""

    key: str
    does: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TrainingFault:
    """In a real training, worker 1 of two runs `before` before it attaches, or `within` in iteration 6."""

    key: str
    outcome: Outcome
    before: str = ""
    within: str = ""
    comm: str = "gloo"


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """A fault whose outcome a test of another folder holds."""

    key: str
    outcome: str
    test: str = field(default="")


DONE = Outcome(0, "all workers finished")
