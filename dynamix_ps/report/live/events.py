"""Events of a run in words, one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dynamix_ps.run_record.json_lines import UNUSABLE, Line

SIZES_SHOWN = 16  # of more workers, only the range is told

# Something is not as it should be, or is again: told on every output.
NOTABLE = frozenset(
    {
        "degraded",
        "recovered",
        "fallback",
        "wire_changed",
        "stall",
        "lost",
        "short",
        "short_of_workers",
        "finishing",
        "host_joined",
        "host_leaves",
        "host_lost",
        "host_not_back",
        "host_refused",
        "worker_left",
        "workers_entered",
        "servers_entered",
        "role_restarted",
        "kept_out",
        "scheduler_exit",
        "job_restarted",
        "leave_refused",
        "failed",
        "lease_lost",
        "lease_back",
        "rejected",
        "unreadable_line",
        "damaged_lines",
        "reaper_restarted",
    }
)
# Not told as events: the tables show them.
ROUTINE = frozenset(
    {"window", "plan", "kept", "observed", "update", "evaluation"}
    | {"registered", "started", "left", "stopped", "stopping", "terminated", "saved", "prometheus", "role_ended"}
)


def describe(event: Line) -> str:
    """An event as a sentence; one of an unknown kind, or without what its kind has, as names and values."""
    try:
        words = _WORDS[event["kind"]](event)
    except UNUSABLE:
        rest = {key: value for key, value in event.items() if key not in ("kind", "source", "time_s")}
        values = ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in rest.items())
        words = f"{event.get('source')}: {event['kind'].replace('_', ' ')}" + (f": {values}" if values else "")
    return words


def sizes_text(sizes: Sequence[int]) -> str:
    """`64 128 256`; of many workers the smallest and the largest."""
    if len(sizes) <= SIZES_SHOWN:
        return " ".join(map(str, sizes))
    return f"from {min(sizes)} to {max(sizes)}, {sum(sizes):,} in all"


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _change(event: Line) -> str:
    detail = event.get("detail")
    return f"{event['kind']}: {event['what']} ({event['source']})" + (f": {detail}" if detail else "")


def _stall(event: Line) -> str:
    names = [*(f"worker-{rank}" for rank in event["missing"]), *event.get("missing_servers", ())]
    missing = ", ".join(names) or "another role"
    waited = f"{event['waited_s']:.0f} s so far"
    return f"{event['source']} waits for {missing} in iteration {event['iteration']:,}, {waited}"


def _arbitrator_exit(event: Line) -> str:
    delay_s = event["restart_in_s"]
    then = "it is not started again" if delay_s is None else f"it starts again in {delay_s:.1f} s"
    return f"the arbitrator {event['how']}; {then}"


def _scheduler_exit(event: Line) -> str:
    delay_s = event["restart_in_s"]
    then = "it is not started again" if delay_s is None else f"training goes on; it starts again in {delay_s:.1f} s"
    return f"the scheduler {event['how']}; {then}"


def _too_few(event: Line) -> str:
    count = "1 worker is" if event["workers"] == 1 else f"{event['workers']} workers are"
    return f"{count} left, elastic.min_workers is {event['min_workers']}"


def _launch(event: Line) -> str:
    return f"launched {', '.join(event['roles'])}; different speeds: {event['emulation']}"


def _finished(event: Line) -> str:
    done = f"{event['iterations']:,} iterations, {event['samples']:,} samples, {event['train_s']:.1f} s"
    return f"{event['source']} finished: {done}"


_WORDS: dict[str, Callable[[Line], str]] = {
    "degraded": _change,
    "recovered": _change,
    "stall": _stall,
    "launch": _launch,
    "finished": _finished,
    "arbitrator_exit": _arbitrator_exit,
    "scheduler_exit": _scheduler_exit,
    "plan_applied": lambda event: (
        f"plan {event['version']} applied at iteration {event['iteration']:,}: {sizes_text(event['batch_sizes'])}"
        + (f", learning rate x{factor:.3g}" if (factor := event.get("lr_factor", 1.0)) != 1 else "")
    ),
    "rollback": lambda event: (
        f"iteration {event['iteration']:,}: {event['reason']}; the weights of iteration {event['back_to']:,} are back, "
        f"and the guard leaves {event['lr_guard']:g} of the learning rate"
    ),
    "wire_changed": lambda event: (
        f"gradients travel as {event['wire']} from iteration {event['iteration']:,} on: {event['reason']}"
    ),
    "lost": lambda event: f"{event['role']}-{event['slot']} is lost: {event['reason']}",
    "members": lambda event: (
        f"{len(event['workers'])} workers and {len(event['servers'])} servers go on from round {event['round']:,}, "
        f"{event['took_s']:.3f} s later"
    ),
    "short_of_workers": lambda event: (
        f"{_too_few(event)}: they wait up to {event['wait_s']:g} s for workers that enter, as by `dynamix join`"
    ),
    "finishing": lambda event: f"{_too_few(event)}: the job ends, with a checkpoint if it saves some",
    "short": lambda event: (
        f"iteration {event['iteration']:,} is finished without worker {', '.join(map(str, event['missing']))}, with "
        f"{event['samples']:,} of {event['planned']:,} samples; the others come next"
    ),
    "host_joined": lambda event: (
        f"host {event['host']} ({event['address']}) has joined, for worker {', '.join(map(str, event['workers']))}"
    ),
    "host_leaves": lambda event: (
        f"host {event['host']} is told to end ({event['signal']})"
        + (f", so its workers shall leave: {_plain(event['ranks'])}" if event["ranks"] else "; nothing runs there")
    ),
    "host_lost": lambda event: (
        f"host {event['host']} is lost: {event['reason']}; the others go on without {', '.join(event['roles'])}"
    ),
    "host_not_back": lambda event: f"host {event['host']} is not back, so nothing starts there: {event['reason']}",
    "host_refused": lambda event: f"host {event['host']} cannot join, so nothing starts there: {event['reason']}",
    "worker_left": lambda event: (
        f"worker-{event['rank']} has left; {event['workers']} workers go on from iteration {event['iteration']:,}"
    ),
    "workers_entered": lambda event: (
        f"worker {', '.join(map(str, event['entered']))} has entered; {event['workers']} workers go on from iteration "
        f"{event['iteration']:,}"
    ),
    "servers_entered": lambda event: (
        f"server {', '.join(map(str, event['entered']))} has entered, and sums from iteration {event['iteration']:,} on"
    ),
    "kept_out": lambda event: (
        f"{event['role']} has not entered, as others were gone before it had; it is started again, which does not "
        "count for elastic.restarts"
    ),
    "role_restarted": lambda event: f"{event['role']} is started again, restart {event['restarts']}",
    "job_restarted": lambda event: f"the job is started again, restart {event['restarts']}, from {event['checkpoint']}",
    "went_on": lambda event: (
        f"training goes on from {event['checkpoint'] or 'a checkpoint'}, after {event['iteration']:,} iterations"
    ),
    "leave_refused": lambda event: f"iteration {event['iteration']:,}: {event['why']}",
    "failed": lambda event: f"{event['source']} failed in iteration {event['iteration']:,}: {event['error']}",
    "lease_lost": lambda event: f"worker-{event['rank']} is silent: the arbitrator hears nothing of it",
    "lease_back": lambda event: f"worker-{event['rank']} is heard again",
    "rejected": lambda event: f"the arbitrator refused a call: {event['detail']}",
    "remembered": lambda event: f"sizes {sizes_text(event['batch_sizes'])} by the speeds of an earlier run",
    "fallback": lambda event: f"safety net in window {event['window']}: {event['detail']}",
    "note": lambda event: f"policy in window {event['window']}: {event['detail']}",
    "unreadable_line": lambda event: f"a line of {event['of']} cannot be used ({event['line_kind']}: {event['error']})",
    "damaged_lines": lambda event: f"damaged lines in the files of the roles: {event['count']}",
    "reaper_restarted": lambda event: str(event["detail"]),
    "arbitrator_restarted": lambda event: f"the arbitrator runs again, restart {event['restarts']}",
    "arbitrator_given_up": lambda event: (
        f"the arbitrator is not started any more after {event['restarts']} restarts; batch sizes stay as they are"
    ),
}
