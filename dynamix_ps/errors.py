"""The errors of this project. Every message says what, where, got, expected and the next step.

DynamixError           exit 1   the base of all
UsageError             exit 2   wrong command line
ConfigError            exit 2   the YAML file (file:line)
EnvironmentNotReady    exit 3   compiler, ports, permissions, packages
BuildError             exit 3   BytePS could not be built
DataError              exit 3   a data set is missing or damaged
JobFailed              exit 4   a role died, or training cannot go on
TrainingError          exit 4   raised inside a worker (NaN loss, data set too small)
TimedOut               exit 5   a phase took longer than its limit
StallError             exit 5   other workers no longer take part in the sum
PeerLostError          exit 6   this worker cannot go on without another one
"""

from __future__ import annotations

INTERRUPTED_EXIT_CODE = 130
# How a role's output says what its file says as `degraded`; the launcher tells it once for all roles.
DEGRADED = "dynamix degraded: "


class DynamixError(Exception):
    """Base of every error that this project raises on purpose; `exit_code` is the exit code of the command."""

    exit_code = 1


class UsageError(DynamixError):
    exit_code = 2


class ConfigError(DynamixError):
    exit_code = UsageError.exit_code


class EnvironmentNotReady(DynamixError):
    exit_code = 3


class BuildError(DynamixError):
    exit_code = EnvironmentNotReady.exit_code


class DataError(DynamixError):
    exit_code = EnvironmentNotReady.exit_code


class JobFailed(DynamixError):
    exit_code = 4


class TrainingError(DynamixError):
    exit_code = JobFailed.exit_code


DIVERGED = "is not finite in iteration"  # reports of runs use this text to tell diverged training from a crash

PEER_GONE = "another worker is gone"  # by which reports tell who was lost from who has lost somebody


class PeerLostError(DynamixError):
    """This worker cannot continue because another worker is gone; the other worker has the cause."""

    exit_code = 6


class TimedOut(DynamixError):
    exit_code = 5


class StallError(DynamixError):
    exit_code = TimedOut.exit_code


class PolicyError(DynamixError):
    """A policy file or a policy's parameters are unusable. `key`: what of `policy` in the cluster file is wrong."""

    def __init__(self, text: str = "", key: str = "name") -> None:
        super().__init__(text)
        self.key = key


class CheckpointError(DynamixError):
    """A checkpoint is missing, incomplete or of another run."""
