"""Events are told in words, not as Python values."""

from __future__ import annotations

from typing import Any

import pytest

from dynamix_ps.report.live.events import _WORDS, describe

EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "degraded": ({"what": "probe", "detail": "gone", "source": "server-0"}, "degraded: probe (server-0): gone"),
    "recovered": ({"what": "probe", "source": "worker-1"}, "recovered: probe (worker-1)"),
    "stall": (
        {"source": "worker-0", "iteration": 1200, "waited_s": 10.04, "missing": [1, 2]},
        "worker-0 waits for worker-1, worker-2 in iteration 1,200, 10 s so far",
    ),
    "launch": (
        {"roles": ["scheduler", "worker-0"], "emulation": "none"},
        "launched scheduler, worker-0; different speeds: none",
    ),
    "finished": (
        {"source": "worker-0", "iterations": 600, "samples": 38400, "train_s": 60.04},
        "worker-0 finished: 600 iterations, 38,400 samples, 60.0 s",
    ),
    "arbitrator_exit": (
        {"code": -9, "how": "was killed by SIGKILL", "restart_in_s": None},
        "the arbitrator was killed by SIGKILL; it is not started again",
    ),
    "scheduler_exit": (
        {"how": "was killed by SIGKILL", "restart_in_s": 0.5},
        "the scheduler was killed by SIGKILL; training goes on; it starts again in 0.5 s",
    ),
    "plan_applied": (
        {"version": 3, "iteration": 120, "batch_sizes": [64, 128, 256]},
        "plan 3 applied at iteration 120: 64 128 256",
    ),
    "rollback": (
        {"iteration": 1300, "back_to": 1280, "reason": "the loss rises", "lr_guard": 0.5},
        "iteration 1,300: the loss rises; the weights of iteration 1,280 are back, "
        "and the guard leaves 0.5 of the learning rate",
    ),
    "wire_changed": (
        {"iteration": 1041, "wire": "bf16", "reason": "it may do"},
        "gradients travel as bf16 from iteration 1,041 on: it may do",
    ),
    "lost": (
        {"role": "worker", "slot": 2, "reason": "was killed by SIGKILL"},
        "worker-2 is lost: was killed by SIGKILL",
    ),
    "host_leaves": (
        {"host": "b", "signal": "SIGTERM", "ranks": [2, 3]},
        "host b is told to end (SIGTERM), so its workers shall leave: 2 3",
    ),
    "host_lost": (
        {"host": "b", "reason": "its agent was killed by SIGKILL", "roles": ["server-1", "worker-2"]},
        "host b is lost: its agent was killed by SIGKILL; the others go on without server-1, worker-2",
    ),
    "host_not_back": (
        {"host": "b", "reason": "ssh timed out", "roles": ["worker-2"]},
        "host b is not back, so nothing starts there: ssh timed out",
    ),
    "host_joined": (
        {"host": "c", "address": "10.0.0.3", "workers": [2]},
        "host c (10.0.0.3) has joined, for worker 2",
    ),
    "host_refused": (
        {"host": "c", "reason": "train.py differs", "roles": ["worker-2"]},
        "host c cannot join, so nothing starts there: train.py differs",
    ),
    "worker_left": (
        {"rank": 2, "iteration": 1812, "workers": 3},
        "worker-2 has left; 3 workers go on from iteration 1,812",
    ),
    "workers_entered": (
        {"iteration": 1912, "entered": [2], "workers": 4},
        "worker 2 has entered; 4 workers go on from iteration 1,912",
    ),
    "short_of_workers": (
        {"workers": 2, "min_workers": 3, "wait_s": 60.0},
        "2 workers are left, elastic.min_workers is 3: they wait up to 60 s for workers that enter, as by "
        "`dynamix join`",
    ),
    "finishing": (
        {"workers": 1, "min_workers": 3},
        "1 worker is left, elastic.min_workers is 3: the job ends, with a checkpoint if it saves some",
    ),
    "job_restarted": (
        {"restarts": 1, "checkpoint": "/runs/last.pt"},
        "the job is started again, restart 1, from /runs/last.pt",
    ),
    "servers_entered": (
        {"iteration": 1912, "entered": [0, 1]},
        "server 0, 1 has entered, and sums from iteration 1,912 on",
    ),
    "kept_out": (
        {"role": "worker-2"},
        "worker-2 has not entered, as others were gone before it had; it is started again, which does not count for "
        "elastic.restarts",
    ),
    "role_restarted": (
        {"role": "worker-2", "restarts": 1},
        "worker-2 is started again, restart 1",
    ),
    "leave_refused": (
        {"iteration": 1812, "why": "worker 2 cannot leave"},
        "iteration 1,812: worker 2 cannot leave",
    ),
    "went_on": (
        {"checkpoint": "/runs/r/last.pt", "iteration": 1812, "epoch": 2, "samples": None},
        "training goes on from /runs/r/last.pt, after 1,812 iterations",
    ),
    "members": (
        {"workers": [0, 1, 3], "servers": [0, 1], "round": 1812, "took_s": 0.0412},
        "3 workers and 2 servers go on from round 1,812, 0.041 s later",
    ),
    "short": (
        {"iteration": 1200, "missing": [1, 2], "samples": 1024, "planned": 2048},
        "iteration 1,200 is finished without worker 1, 2, with 1,024 of 2,048 samples; the others come next",
    ),
    "failed": (
        {"source": "worker-1", "iteration": 7, "error": "loss is NaN"},
        "worker-1 failed in iteration 7: loss is NaN",
    ),
    "lease_lost": ({"rank": 1}, "worker-1 is silent: the arbitrator hears nothing of it"),
    "lease_back": ({"rank": 1}, "worker-1 is heard again"),
    "rejected": ({"detail": "old plan"}, "the arbitrator refused a call: old plan"),
    "fallback": ({"window": 3, "detail": "proportional shares"}, "safety net in window 3: proportional shares"),
    "remembered": ({"batch_sizes": [8, 24]}, "sizes 8 24 by the speeds of an earlier run"),
    "note": ({"window": 4, "detail": "sizes stay"}, "policy in window 4: sizes stay"),
    "unreadable_line": (
        {"of": "worker-0", "line_kind": "window", "error": "KeyError('rank')"},
        "a line of worker-0 cannot be used (window: KeyError('rank'))",
    ),
    "damaged_lines": ({"count": 2}, "damaged lines in the files of the roles: 2"),
    "reaper_restarted": ({"detail": "the reaper was killed"}, "the reaper was killed"),
    "arbitrator_restarted": ({"restarts": 2}, "the arbitrator runs again, restart 2"),
    "arbitrator_given_up": (
        {"restarts": 5},
        "the arbitrator is not started any more after 5 restarts; batch sizes stay as they are",
    ),
}


@pytest.mark.parametrize("kind", _WORDS)
def test_every_kind_has_its_words(kind: str) -> None:
    fields, words = EVENTS[kind]
    assert describe({"kind": kind, "time_s": 1.0, **fields}) == words


def test_a_plan_tells_the_factor_on_the_learning_rate_where_it_has_one() -> None:
    event = {"kind": "plan_applied", "version": 1, "iteration": 3, "batch_sizes": [8, 8], "lr_factor": 0.70711}
    assert describe(event) == "plan 1 applied at iteration 3: 8 8, learning rate x0.707"


def test_many_sizes_are_a_range() -> None:
    event = {"kind": "plan_applied", "version": 1, "iteration": 3, "batch_sizes": list(range(32, 64))}
    assert describe(event) == "plan 1 applied at iteration 3: from 32 to 63, 1,520 in all"


@pytest.mark.parametrize("kind", ["lease_lost", "something_new"])
def test_what_is_unknown_or_incomplete_is_told_as_names_and_values(kind: str) -> None:
    words = describe({"kind": kind, "source": "arbitrator", "time_s": 1.0, "batch_sizes": [1, 2], "n": 3})
    assert words == f"arbitrator: {kind.replace('_', ' ')}: batch sizes 1 2, n 3"
