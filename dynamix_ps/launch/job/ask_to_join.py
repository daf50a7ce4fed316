"""Asks the launcher of an elastic job, by a line in the run folder, to start a worker or server in an empty place.

The leader writes into its own file that a joiner has entered. Until then this module repeats the line: the launcher
starts no role whose process still runs, and a joiner may fail.
"""

from __future__ import annotations

import time

from dynamix_ps.config.load import load_config
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady, TimedOut, UsageError
from dynamix_ps.launch.job.ask_to_leave import check_goes_on, phase_of
from dynamix_ps.run_record.json_lines import JsonLinesTail, Line
from dynamix_ps.run_record.model import ABSENT
from dynamix_ps.run_record.requests import JOIN, request
from dynamix_ps.run_record.run_folder import RunFolder

PATIENCE_S = 600.0
REPEAT_S = 1.0
_LOOK_S = 0.2


def ask_to_join(
    folder: RunFolder,
    number: int,
    role: str = "worker",
    host: str = "",
    slots: int = 1,
    patience_s: float = PATIENCE_S,
) -> str:
    """Have the launcher of this run start a worker or server, and wait until it takes part. Returns that in words.

    `host`: on which the worker shall start; empty: on its own. `slots`: for how many workers a new host has room.

    Raises:
        UsageError: the run accepts no joiners, has no such role or is over, or the role is there or has no host.
        DynamixError: the run ended before the role took part.
        EnvironmentNotReady: the run folder cannot be written, the host is lost and not back, or it cannot join.
        TimedOut: the role does not take part within `patience_s`.
    """
    config = load_config(folder.config_file)
    _check(folder, number, role, host, config)
    answers = [JsonLinesTail(folder.worker_file(other)) for other in range(len(config.cluster.workers))]
    events = JsonLinesTail(folder.events_file)
    for tail in (*answers, events):
        tail.read()
    deadline_s, ask_s = time.monotonic() + patience_s, 0.0
    while True:
        for line in (line for tail in answers for line in tail.read()):
            if words := _answer(line, number, role):
                return words
        for line in events.read():
            _check_event(line, number, role)
        if (now_s := time.monotonic()) >= ask_s:
            request(folder, JOIN, number, role, host, slots)
            ask_s = now_s + REPEAT_S
        if now_s > deadline_s:
            log = folder.log_file(f"{role}-{number}")
            raise TimedOut(f"{role} {number} does not take part after {patience_s:g} s; its log is {log}")
        time.sleep(_LOOK_S)


def _check(folder: RunFolder, number: int, role: str, host: str, config: Config) -> None:
    state = check_goes_on(folder, config)
    if role == "worker":
        phase = phase_of(number, state)
        if not (host or state.workers[number].host or role_hosts(config.cluster).workers[number]):
            raise UsageError(f"worker {number}: no host has a free slot for it; name one: dynamix join {number} --host")
    elif not config.data_plane.has_servers:
        raise UsageError(f"{folder.path}: comm: {config.comm} has no servers")
    else:
        servers = len(role_hosts(config.cluster).servers)
        if not 0 <= number < servers:
            raise UsageError(f"server {number}: the run has servers 0 to {servers - 1}")
        phase = "lost" if number in state.membership.lost("server") else "running"
    if phase not in ("left", "lost", ABSENT):
        raise UsageError(f"{role} {number}: it is there ({phase})")


def _check_event(line: Line, number: int, role: str) -> None:
    """Raises DynamixError for an event after which the role cannot take part."""
    if line["kind"] == "end":
        raise DynamixError(f"the run ended before {role} {number} took part")
    if line["kind"] == "host_not_back" and f"{role}-{number}" in line.get("roles", ()):
        raise EnvironmentNotReady(f"{role} {number}: its host {line.get('host')} is not back: {line.get('reason')}")
    if line["kind"] == "host_refused" and f"{role}-{number}" in line.get("roles", ()):
        raise EnvironmentNotReady(f"{role} {number}: host {line.get('host')} cannot join: {line.get('reason')}")


def _answer(line: Line, number: int, role: str) -> str:
    """What a line of the leader's file says about the joiner; empty for other lines."""
    if line["kind"] != f"{role}s_entered" or number not in line.get("entered", ()):
        return ""
    iteration = line.get("iteration", 0)
    if role == "server":
        return f"server {number} has entered; it sums from iteration {iteration:,} on"
    return f"worker {number} has entered; {line.get('workers')} workers go on from iteration {iteration:,}"
