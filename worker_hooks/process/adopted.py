"""Takes part in a job that another launcher has started, such as torchrun: as if `dynamix launch` had.

What does so is loaded by name (dynamix_ps/other_launchers/): most processes do not need it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dynamix_ps.config import variables
from dynamix_ps.errors import UsageError
from worker_hooks.process.launched import started_elsewhere
from worker_hooks.process.place import check_place

_ADOPT = "dynamix_ps.other_launchers.adopt:adopt"  # loaded where another launcher has started several processes
_job: Any = None  # that was adopted; a process has one


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a script gives to `attach`, for a job without a cluster file.

    Attributes:
        policy: name of the policy; None: the default.
        batch: smallest and largest size of every worker; None: they follow from the first sizes.
    """

    policy: str | None = None
    batch: tuple[int, int] | None = None

    @classmethod
    def of(cls, policy: Any, batch: Any) -> Chosen:
        """As a script gives them. Raises UsageError for values of another kind."""
        if policy is not None and not isinstance(policy, str):
            raise UsageError(f"attach(policy={policy!r}): expected the name of a policy, such as 'ppo'")
        if batch is None:
            return cls(policy)
        if not (isinstance(batch, Sequence) and len(batch) == 2 and all(isinstance(size, int) for size in batch)):
            raise UsageError(f"attach(batch={batch!r}): expected the smallest and the largest size, such as (8, 512)")
        return cls(policy, (batch[0], batch[1]))

    def __str__(self) -> str:
        given = {"policy": self.policy, "batch": self.batch}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


def meet_others() -> None:
    """Take part as a worker, if another launcher has started this process as one of several.

    From now on it can join the data plane.

    Raises:
        UsageError: its variables do not say where the processes meet, or another process is this worker.
        TimedOut: some of them have not come in time.
        DynamixError: a cluster file is wrong, or the run that it names cannot begin.
    """
    _meet()
    if _job is not None:
        _job.begin_by_file()


def _meet() -> None:
    global _job  # noqa: PLW0603  a process has one
    if _job is not None:
        check_place(os.environ)
    elif variables.get(variables.RUN_ID) is None and variables.get(variables.REHEARSAL) is None:
        started = started_elsewhere(os.environ)
        if started is not None and started.size > 1:
            from dynamix_ps.parts import load

            _job = load(_ADOPT)(started)


def is_adopted() -> bool:
    """Whether this process takes part in a job that another launcher has started: its processes have met."""
    return _job is not None


def begin_job(first_size: int, chosen: Chosen) -> None:
    """`meet_others`, and agree on a configuration: from now on the environment is that of a worker.

    Args:
        first_size: of this worker, where no cluster file says otherwise.
        chosen: the same on all workers.

    Raises:
        UsageError: `chosen` is wrong, or contradicts the cluster file, another worker, or an earlier call.
        DynamixError: as `meet_others`; the configuration is wrong, or the run cannot begin.
    """
    _meet()
    if _job is not None:
        _job.begin(first_size, chosen)
    elif str(chosen) and (file := variables.get(variables.CONFIG)) is not None:
        raise UsageError(f"attach({chosen}): the cluster file {file} says so for this job; remove it here, or there")
