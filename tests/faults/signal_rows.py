"""Signals from outside to roles, launcher, reaper and arbitrator."""

from __future__ import annotations

import signal

from tests.faults.table import DONE, Outcome, SignalFault

_KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV)
_SHORT = "timeouts: {launch_s: 3.9, job_s: 4.0}\n"
_STOPPED = "does not answer: stopped by SIGSTOP or a debugger; "


def _killed(target: str, number: signal.Signals, comm: str) -> SignalFault:
    # A scheduler or server gets SIGINT while it is in C++, where Python cannot turn it into a KeyboardInterrupt.
    return SignalFault(
        f"{target}-{number.name}", target, (number,), Outcome(4, f"error: {target} was killed by {number.name}"), comm
    )


SIGNAL_FAULTS = (
    *(_killed("worker-1", number, "gloo") for number in _KILLS),
    *(_killed(target, number, "byteps") for target in ("server-0", "scheduler") for number in _KILLS if number != 2),
    *(
        SignalFault(
            f"{target}-SIGKILL-at-start",
            target,
            (signal.SIGKILL,),
            Outcome(4, f"error: {target} was killed by SIGKILL"),
            "byteps",
            trained=False,
        )
        for target in ("worker-1", "server-0", "scheduler")
    ),
    *(
        SignalFault(
            f"{target}-SIGSTOP",
            target,
            (signal.SIGSTOP,),
            Outcome(5, f"error: {target} {_STOPPED}the job took longer than 4 s"),
            "byteps",
            settings=_SHORT,
        )
        for target in ("worker-1", "server-0", "scheduler")
    ),
    SignalFault(
        "server-0-SIGSTOP-at-start",
        "server-0",
        (signal.SIGSTOP,),
        Outcome(5, f"error: server-0 {_STOPPED}worker-0, worker-1 did not start training within 4 s"),
        "byteps",
        trained=False,
        settings="timeouts: {launch_s: 4.0}\n",
    ),
    SignalFault("worker-1-SIGSTOP-SIGCONT", "worker-1", (signal.SIGSTOP, signal.SIGCONT), DONE, goes_on=True),
    SignalFault("launcher-SIGSTOP-SIGCONT", "launcher", (signal.SIGSTOP, signal.SIGCONT), DONE, goes_on=True),
    *(
        SignalFault(
            f"launcher-{number.name}", "launcher", (number,), Outcome(130, f"error: interrupted by {number.name}")
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ),
    *(
        SignalFault(f"launcher-{number.name}", "launcher", (number,), Outcome(-number, "run folder: "))
        for number in (signal.SIGKILL, signal.SIGQUIT, signal.SIGSEGV)
    ),
    SignalFault(
        "reaper-SIGKILL",
        "reaper",
        (signal.SIGKILL,),
        Outcome(0, r"the reaper was killed; it was started again(.|\n)*all workers finished"),
        goes_on=True,
    ),
    SignalFault(
        "arbitrator-SIGKILL",
        "arbitrator",
        (signal.SIGKILL,),
        Outcome(0, "all workers finished"),
        mode="adapt",
        goes_on=True,
    ),
    SignalFault(
        "arbitrator-SIGSTOP",
        "arbitrator",
        (signal.SIGSTOP,),
        Outcome(0, "all workers finished"),
        mode="adapt",
        goes_on=True,
    ),
    SignalFault(
        "arbitrator-watch-SIGKILL",
        "arbitrator-watch",
        (signal.SIGKILL,),
        Outcome(0, "warning: arbitrator was killed by SIGKILL during the run(.|\n)*all workers finished"),
        mode="adapt",
        goes_on=True,
    ),
)
