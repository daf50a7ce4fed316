"""One tree of errors. Every message says what, where, got, expected and the next step.

DynamixError                 exit 1
+- UsageError                exit 2   wrong command line
|  +- ConfigError            exit 2   the YAML file (file:line)
+- EnvironmentNotReady       exit 3   compiler, ports, permissions, packages
|  +- BuildError             exit 3   BytePS could not be built
|  +- DataError              exit 3   a data set is missing or damaged
+- JobFailed                 exit 4   a role died, or training cannot go on
|  +- TrainingError          exit 4   raised inside a worker (NaN loss, data set too small)
+- TimedOut                  exit 5   a phase took longer than its limit
   +- StallError             exit 5   other workers no longer take part in the sum
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


class ConfigError(UsageError):
    pass


class EnvironmentNotReady(DynamixError):
    exit_code = 3


class BuildError(EnvironmentNotReady):
    pass


class DataError(EnvironmentNotReady):
    pass


class JobFailed(DynamixError):
    exit_code = 4


class TrainingError(JobFailed):
    pass


DIVERGED = "is not finite in iteration"  # reports of runs use this text to tell diverged training from a crash


class PeerLostError(TrainingError):
    """This worker cannot continue because another worker is gone; the other worker has the cause."""

    exit_code = 6


class TimedOut(DynamixError):
    exit_code = 5


class StallError(TimedOut):
    pass


class PolicyError(DynamixError):
    """A policy file or a policy's parameters are unusable."""


class CheckpointError(DynamixError):
    """A checkpoint is missing, incomplete or of another run."""
