"""Decides whether a run goes on, is complete or has failed, from how and when its roles end. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import INTERRUPTED_EXIT_CODE, JobFailed, PeerLostError, TimedOut
from dynamix_ps.launch.host.process import how_it_ended


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each phase may take."""

    launch_s: float = 120.0
    job_s: float | None = None
    # after this time, a role that has ended with code 0 before the others counts as failed, and a lost server that
    # still runs is killed, as is a lost worker when the others have finished
    early_exit_s: float = 3.0
    end_grace_s: float = 15.0  # for servers and scheduler after the end of the last worker
    stop_grace_s: float = 20.0  # between TERM and KILL, enough for a checkpoint; for workers, servers and so on in turn
    fail_grace_s: float = 1.0  # between TERM and KILL, for all roles at once, when the job has failed
    cause_s: float = 0.0  # how long an end that has its cause elsewhere waits for news of that
    elastic: bool = False  # the job goes on without lost roles

    @classmethod
    def of(cls, timeouts: Timeouts, hosts: int = 1, elastic: bool = False) -> Limits:
        """`hosts`: number of hosts. With several, the cause of an end may reach the launcher after the end."""
        cause_s = 2.0 if hosts > 1 else 0.0
        return cls(launch_s=timeouts.launch_s, job_s=timeouts.job_s, cause_s=cause_s, elastic=elastic)


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One role. `exit_code` is negative for a signal and none while it runs; `ended_s` counts from the start."""

    name: str
    role: str
    rank: int | None = None
    exit_code: int | None = None
    ended_s: float = 0.0
    stopped: bool = False  # by SIGSTOP or a debugger
    late: bool = False  # a worker that was started while the others train
    incarnation: str = ""  # as the coordinator of an elastic job names this process
    lost_with: str = ""  # host that was lost with it
    awaited: bool = False  # it has crashed, and is started again


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What the workers' hooks have reported so far, by rank."""

    started: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    errors: Mapping[int, str] = field(default_factory=dict)
    iterations: Mapping[int, int] = field(default_factory=dict)
    founded: bool = False  # all members of an elastic job have met
    left: frozenset[int] = frozenset()  # workers that have left an elastic job on notice
    lost: frozenset[int] = frozenset()  # workers that it goes on without, and in whose places nobody has entered
    servers_away: frozenset[str] = frozenset()  # names of servers that are lost, until others sum in their places
    lost_servers: frozenset[tuple[str, str]] = frozenset()  # ever: name, and incarnation of the process
    finishing: bool = False  # too few are left, and end with a checkpoint


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        exit_code: of the launcher.
        culprits: roles whose last lines to show.
        notes: further reasons.
        by_loss: a job that trained ended by the loss of processes or hosts, and not by an error of the script.
    """

    exit_code: int
    reason: str
    culprits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_loss: bool = False


def interrupted(by: str) -> Ending:
    return Ending(INTERRUPTED_EXIT_CODE, f"interrupted by {by}")


def lost_hosts(lost: Mapping[str, str], roles: Mapping[str, Sequence[str]], progress: RunProgress) -> Ending:
    """The job cannot go on without these hosts. `lost`: reasons by host; `roles`: the roles that ran there."""
    said = "; ".join(f"host {name} is lost: {why} (it ran {_names(roles[name])})" for name, why in lost.items())
    return Ending(JobFailed.exit_code, said, by_loss=progress.founded)


def goes_on_without(kinds: Collection[str], progress: RunProgress, limits: Limits) -> bool:
    """Whether a job can go on without a host that has roles of these kinds.

    `judge` decides whether enough workers are left.
    """
    return limits.elastic and progress.founded and {"worker", "server"}.issuperset(kinds)


def judge(roles: Sequence[RoleStatus], progress: RunProgress, now_s: float, limits: Limits) -> Ending | None:
    """How the run ended, or none while it goes on. `now_s` counts from the start of the roles."""
    gone = [role for role in roles if role.rank in progress.left and role.exit_code is not None]
    there = [role for role in roles if role not in gone]
    lost = lost_roles(there, progress, limits)
    servers = [role for role in there if role.role in ("scheduler", "server") and role not in lost]
    workers = [role for role in there if role.role == "worker"]
    workers = [worker for worker in workers if worker not in lost]
    ending = (
        _crashed([*workers, *servers], progress, now_s, limits)
        or _completed(workers, servers, lost, gone, progress, now_s, limits)
        or _left_early(workers, servers, progress, now_s, limits)
        or _late(workers, progress, now_s, limits)
    )
    stopped = [role.name for role in roles if role.stopped]
    if ending is None or ending.exit_code == 0 or not stopped:
        return ending
    cause = f"{_names(stopped)} {'does' if len(stopped) == 1 else 'do'} not answer: stopped by SIGSTOP or a debugger"
    return replace(ending, reason=f"{cause}; {ending.reason}")


def lost_roles(roles: Sequence[RoleStatus], progress: RunProgress, limits: Limits) -> list[RoleStatus]:
    """Roles that have crashed and do not end the job, in the order of their ends.

    They are the scheduler if it is started again, and all crashed workers and servers. No worker or server is lost in
    this sense before the members of the job have met, or where no worker with the state of the training or no server is
    left. Below `min_workers` the coordinator lets the others wait, and then end.
    """
    if not limits.elastic or not progress.founded:
        return []
    lost = [role for role in roles if role.role == "scheduler" and role.awaited]
    for kind, gone in (("worker", progress.lost), ("server", frozenset[int]())):
        of_kind = [role for role in roles if role.role == kind]
        crashed = [role for role in of_kind if role.exit_code not in (None, 0)]
        if any(role not in crashed and role.rank not in gone for role in of_kind):
            lost += crashed
    return sorted(lost, key=lambda role: role.ended_s)


def left_behind(roles: Sequence[RoleStatus], progress: RunProgress) -> list[str]:
    """Roles that still run but are no members: servers, and all roles once every member worker has finished.

    They were cut off or stopped and do not know it, or come too late. The data plane waits for their connections when
    it ends, and a joiner waits for the connections of servers.
    """
    ranks = {role.rank for role in roles if role.role == "worker"}
    finished = progress.finished >= ranks - progress.lost - progress.left
    return [
        role.name
        for role in roles
        if role.exit_code is None
        and (
            (role.name, role.incarnation) in progress.lost_servers
            or (finished and (role.rank in progress.lost or role.name in progress.servers_away))
        )
    ]


def _crashed(roles: Sequence[RoleStatus], progress: RunProgress, now_s: float, limits: Limits) -> Ending | None:
    failed = [role for role in roles if role.exit_code not in (None, 0)]
    if not failed:
        return None
    # Who was lost, or that a whole host was told to end, has perhaps not been heard of yet.
    elsewhere = (PeerLostError.exit_code, -signal.SIGTERM)
    if all(role.exit_code in elsewhere and now_s - role.ended_s < limits.cause_s for role in failed):
        return None

    # A worker that ended because another one was gone is never the reason. Of several that ended in the same moment,
    # one that has reported an error explains more than the others.
    def order(role: RoleStatus) -> tuple[bool, float, bool, str]:
        lost_others = role.exit_code == PeerLostError.exit_code
        return lost_others, role.ended_s, role.rank not in progress.errors, role.name

    first = min(failed, key=order)
    reason = _cause(first, progress)
    others = [role.name for role in failed if role is not first]
    if others:
        reason += f" (also ended: {', '.join(others)})"
    if limits.elastic and progress.founded and first.role != "scheduler":
        reason += f"; {_too_few(first, failed, progress)}"
    by_loss = progress.founded and not _erred_last(failed, progress)
    return Ending(JobFailed.exit_code, reason, (first.name,), by_loss=by_loss)


def _erred_last(failed: Sequence[RoleStatus], progress: RunProgress) -> bool:
    """Whether the job ended with an error of the script, which a new start would repeat."""
    causes = [role for role in failed if role.exit_code not in (PeerLostError.exit_code, TimedOut.exit_code)]
    if not causes:
        return False
    last = max(causes, key=lambda role: role.ended_s)
    return (last.exit_code or 0) > 0 and last.rank in progress.errors


def _too_few(first: RoleStatus, failed: Sequence[RoleStatus], progress: RunProgress) -> str:
    """Why an elastic job does not go on without the crashed roles."""
    if first.role == "server":
        return "no server is left"
    ranks = [role.rank for role in failed if role.exit_code == PeerLostError.exit_code]
    told = [progress.errors[rank] for rank in ranks if rank is not None and rank in progress.errors]
    return told[-1] if progress.finishing and told else "no worker is left that has the state of the training"


def _cause(role: RoleStatus, progress: RunProgress) -> str:
    """How, when and why a role has ended."""
    told = progress.errors.get(role.rank) if role.rank is not None else None
    how = f"was lost with host {role.lost_with}" if role.lost_with else how_it_ended(role.exit_code)
    return f"{role.name} {how}{_when(role, progress)}" + (f": {told}" if told else "")


def _completed(
    workers: Sequence[RoleStatus],
    servers: Sequence[RoleStatus],
    lost: Sequence[RoleStatus],
    gone: Sequence[RoleStatus],
    progress: RunProgress,
    now_s: float,
    limits: Limits,
) -> Ending | None:
    if any(worker.exit_code is None for worker in workers):
        return None
    since_s = now_s - max(worker.ended_s for worker in workers)
    left = [role.name for role in servers if role.exit_code is None]
    idle = [worker.name for worker in workers if worker.rank not in progress.started]
    finished = _finished(workers, lost, gone, progress)
    if not left and (servers or not idle):  # servers end by themselves only after workers that have trained
        return Ending(0, finished)
    if idle and since_s >= limits.early_exit_s:
        return Ending(
            JobFailed.exit_code, f"{_names(idle)} ended (exit code 0) without training; {_ATTACH}", tuple(idle)
        )
    if left and since_s >= limits.end_grace_s:
        note = f"{_names(left)} did not end within {limits.end_grace_s:g} s after the last worker and had to be stopped"
        return Ending(0, finished, notes=(note,))
    return None


def _finished(
    workers: Sequence[RoleStatus], lost: Sequence[RoleStatus], gone: Sequence[RoleStatus], progress: RunProgress
) -> str:
    causes = [f"{worker.name} left{_when(worker, progress)}" for worker in gone]
    causes += [_cause(role, progress) for role in lost]
    missing = len(gone) + sum(role.role == "worker" for role in lost)
    if not missing:
        return "; ".join(("all workers finished", *causes))
    return f"{len(workers)} of {len(workers) + missing} workers finished: {'; '.join(causes)}"


_ATTACH = "does the script call attach() of dynamix_ps.torch or dynamix_ps.mxnet?"


def _left_early(
    workers: Sequence[RoleStatus], servers: Sequence[RoleStatus], progress: RunProgress, now_s: float, limits: Limits
) -> Ending | None:
    still = [worker.name for worker in workers if worker.exit_code is None]
    if not still:
        return None
    all_finished = progress.finished >= {worker.rank for worker in workers}
    # Servers end with code 0 only after all workers have left in order. A script without our hooks does not report
    # that, so it gets more time for what it does after its training.
    plain = bool(servers) and not progress.started and all(server.exit_code == 0 for server in servers)
    patience_s = limits.end_grace_s if plain else limits.early_exit_s
    for role in (*workers, *servers):
        excused = role.rank in progress.finished if role.role == "worker" else all_finished
        if role.exit_code == 0 and not excused and now_s - role.ended_s >= patience_s:
            reason = f"{role.name} ended too early (exit code 0){_when(role, progress)}, {_names(still)} still running"
            return Ending(JobFailed.exit_code, reason, (role.name,))
    return None


def _late(workers: Sequence[RoleStatus], progress: RunProgress, now_s: float, limits: Limits) -> Ending | None:
    awaited = [worker for worker in workers if worker.exit_code is None and not worker.late]
    missing = [worker for worker in awaited if worker.rank not in progress.started]
    if missing and now_s >= limits.launch_s:
        names = [worker.name for worker in missing]
        there = [worker.name for worker in workers if worker not in missing and not worker.late]
        reason = (
            f"{_names(names)} did not start training within {limits.launch_s:g} s (timeouts.launch_s); "
            f"started: {_names(there) if there else 'none'}; {_ATTACH}"
        )
        return Ending(TimedOut.exit_code, reason, tuple(names))
    if limits.job_s is not None and now_s >= limits.job_s:
        return Ending(TimedOut.exit_code, f"the job took longer than {limits.job_s:g} s (timeouts.job_s)")
    return None


def _when(role: RoleStatus, progress: RunProgress) -> str:
    if role.rank is None or role.rank in progress.finished:
        return ""
    if role.rank not in progress.started:
        return " before it started training"
    return f" at iteration {progress.iterations.get(role.rank, 0)}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
