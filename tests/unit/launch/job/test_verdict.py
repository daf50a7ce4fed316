"""Which role ended, how and when: whether a run continues, is complete, or has failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.job.verdict import (
    Limits,
    RoleStatus,
    RunProgress,
    goes_on_without,
    judge,
    left_behind,
    lost_hosts,
)

LIMITS = Limits(launch_s=100, job_s=1000, early_exit_s=3, end_grace_s=15)
TRAINING = RunProgress(frozenset({0, 1}), iterations={0: 70, 1: 69})
DONE = RunProgress(frozenset({0, 1}), frozenset({0, 1}))


def roles(**codes: tuple[int | None, float]) -> list[RoleStatus]:
    """Scheduler, server and two workers; keyword `w1=(code, ended_s)` says who ended."""
    kinds = {"scheduler": "scheduler", "server": "server", "w0": "worker", "w1": "worker"}
    return [
        RoleStatus(
            {"w0": "worker-0", "w1": "worker-1", "server": "server-0"}.get(key, key),
            kind,
            int(key[1]) if kind == "worker" else None,
            *codes.get(key, (None, 0.0)),
        )
        for key, kind in kinds.items()
    ]


def test_while_all_run_the_run_goes_on() -> None:
    assert judge(roles(), TRAINING, 99, LIMITS) is None


@pytest.mark.parametrize(
    ("role", "code", "reason"),
    [
        ("w1", 1, "worker-1 ended with exit code 1 at iteration 69"),
        ("w1", -9, "worker-1 was killed by SIGKILL at iteration 69"),
        ("server", -11, "server-0 was killed by SIGSEGV"),
        ("scheduler", 3, "scheduler ended with exit code 3"),
    ],
)
def test_a_crash_ends_the_run_at_once_and_is_named(role: str, code: int, reason: str) -> None:
    ending = judge(roles(**{role: (code, 50.0)}), TRAINING, 50.0, LIMITS)
    assert ending is not None
    assert (ending.exit_code, ending.reason) == (4, reason)
    assert ending.culprits[0] == reason.split(maxsplit=1)[0]


def test_a_stopped_role_is_named_before_what_it_causes() -> None:
    all_roles = [replace(role, stopped=role.role == "server") for role in roles(w0=(5, 50.0))]
    assert judge([replace(role, exit_code=None) for role in all_roles], TRAINING, 50.0, LIMITS) is None
    ending = judge(all_roles, TRAINING, 50.0, LIMITS)
    assert ending is not None
    assert ending.reason == (
        "server-0 does not answer: stopped by SIGSTOP or a debugger; worker-0 ended with exit code 5 at iteration 70"
    )


def test_a_crash_before_training_says_so() -> None:
    ending = judge(roles(w0=(2, 1.0)), RunProgress(), 1.0, LIMITS)
    assert ending is not None
    assert ending.reason == "worker-0 ended with exit code 2 before it started training"


def test_of_several_crashes_the_first_is_the_culprit_and_its_own_words_are_repeated() -> None:
    progress = RunProgress(frozenset({0, 1}), errors={1: "the loss of worker 1 is not finite"}, iterations={1: 5})
    ending = judge(roles(w0=(-6, 9.0), w1=(4, 8.0), server=(1, 9.0)), progress, 9.0, LIMITS)
    assert ending is not None
    assert ending.culprits == ("worker-1",)
    assert "at iteration 5: the loss of worker 1 is not finite (also ended: worker-0, server-0)" in ending.reason


def test_of_crashes_noticed_together_the_one_that_explained_itself_is_shown() -> None:
    progress = RunProgress(frozenset({0, 1}), errors={1: "disk on fire"})
    ending = judge(roles(w0=(-6, 8.0), w1=(4, 8.0)), progress, 8.0, LIMITS)
    assert ending is not None
    assert ending.culprits == ("worker-1",)


def test_who_lost_another_worker_is_not_the_one_to_look_at() -> None:
    """In a ring everybody fails when one does, and some may be noticed before it."""
    progress = RunProgress(frozenset({0, 1}), errors={0: "worker 0 lost the ring"}, iterations={1: 5})
    ending = judge(roles(w0=(6, 8.0), w1=(-9, 9.0)), progress, 9.0, LIMITS)
    assert ending is not None
    assert ending.culprits == ("worker-1",)


def test_on_several_hosts_the_end_of_who_lost_others_waits_for_their_cause() -> None:
    limits = Limits.of(Timeouts(), hosts=2)
    lost_only = roles(w0=(6, 50.0))
    assert judge(lost_only, TRAINING, 51.0, limits) is None
    late = judge(roles(w0=(6, 50.0), w1=(-9, 51.5)), TRAINING, 51.6, limits)
    assert late is not None
    assert late.reason.startswith("worker-1 was killed by SIGKILL")
    never = judge(lost_only, TRAINING, 52.1, limits)
    assert never is not None
    assert never.culprits == ("worker-0",)
    here = judge(lost_only, TRAINING, 50.0, Limits.of(Timeouts()))
    assert here is not None, "on one host all is known at once"


def test_on_several_hosts_the_end_by_sigterm_waits_for_the_notice_to_its_host() -> None:
    limits = Limits.of(Timeouts(), hosts=2)
    told = roles(w1=(-15, 50.0))
    assert judge(told, TRAINING, 51.0, limits) is None
    alone = judge(told, TRAINING, 52.1, limits)
    assert alone is not None
    assert alone.reason == "worker-1 was killed by SIGTERM at iteration 69"


def test_a_lost_host_is_the_reason_with_what_ran_there() -> None:
    ending = lost_hosts({"b": "its agent ended"}, {"b": ["server-1", "worker-1"]}, TRAINING)
    assert (ending.exit_code, ending.reason) == (4, "host b is lost: its agent ended (it ran server-1, worker-1)")
    assert not ending.by_loss, "the job had not begun"
    assert lost_hosts({"b": ""}, {"b": []}, FOUR).by_loss


def test_a_job_goes_on_without_a_host_that_has_workers_and_servers_alone() -> None:
    elastic = Limits.of(Timeouts(), hosts=2, elastic=True)
    founded = replace(TRAINING, founded=True)
    assert goes_on_without(("worker", "server"), founded, elastic) and goes_on_without((), founded, elastic)
    assert not goes_on_without(("worker", "scheduler"), founded, elastic)
    assert not goes_on_without(("arbitrator",), founded, elastic)
    assert not goes_on_without(("worker",), TRAINING, elastic), "before the members have met"
    assert not goes_on_without(("worker",), founded, Limits.of(Timeouts(), hosts=2))


def test_a_worker_that_was_lost_with_its_host_is_told_so() -> None:
    limits = Limits.of(Timeouts(), hosts=2, elastic=True)
    both = roles(w1=(-9, 50.0), w0=(-9, 51.0))
    told = [replace(one, lost_with="b") if one.rank == 1 else one for one in both]
    ending = judge(told, replace(TRAINING, founded=True), 51.0, limits)
    assert ending is not None
    assert ending.reason == (
        "worker-1 was lost with host b at iteration 69 (also ended: worker-0); no worker is left that has the state of "
        "the training"
    )


def test_a_clean_end_needs_all_roles_to_leave_by_themselves() -> None:
    workers_gone = roles(w0=(0, 50.0), w1=(0, 50.5))
    assert judge(workers_gone, DONE, 60, LIMITS) is None
    complete = judge(roles(w0=(0, 50.0), w1=(0, 50.5), server=(0, 51), scheduler=(0, 51)), DONE, 52, LIMITS)
    assert complete is not None
    assert (complete.exit_code, complete.notes) == (0, ())


def test_servers_that_stay_are_stopped_but_the_result_stands() -> None:
    ending = judge(roles(w0=(0, 50.0), w1=(0, 50.5), server=(0, 51)), DONE, 66, LIMITS)
    assert ending is not None
    assert ending.exit_code == 0
    assert "scheduler did not end within 15 s" in ending.notes[0]


def test_workers_that_never_trained_are_a_failure_although_they_ended_with_0() -> None:
    gone = roles(w0=(0, 1.0), w1=(0, 1.0))
    assert judge(gone, RunProgress(), 3.9, LIMITS) is None
    ending = judge(gone, RunProgress(), 4.0, LIMITS)
    assert ending is not None
    assert ending.exit_code == 4
    assert "worker-0, worker-1 ended (exit code 0) without training" in ending.reason


def test_without_servers_a_worker_must_have_trained() -> None:
    alone = [RoleStatus("worker-0", "worker", 0, 0, 1.0)]
    assert judge(alone, RunProgress(), 1.0, LIMITS) is None
    assert judge(alone, RunProgress(), 4.0, LIMITS).exit_code == 4  # type: ignore[union-attr]
    assert judge(alone, RunProgress(frozenset({0})), 1.0, LIMITS).exit_code == 0  # type: ignore[union-attr]


def test_a_plain_byteps_script_is_complete_when_the_servers_leave_after_it() -> None:
    ending = judge(roles(w0=(0, 5), w1=(0, 5), server=(0, 5), scheduler=(0, 5)), RunProgress(), 5.0, LIMITS)
    assert ending is not None
    assert ending.exit_code == 0


def test_a_plain_byteps_script_may_go_on_for_a_while_after_the_servers_left() -> None:
    left = roles(w0=(0, 5), server=(0, 5), scheduler=(0, 5))
    assert judge(left, RunProgress(), 19.9, LIMITS) is None
    assert judge(left, RunProgress(), 20.0, LIMITS) is not None
    assert judge(roles(w0=(0, 5), server=(0, 5)), RunProgress(), 8.0, LIMITS) is not None


@pytest.mark.parametrize(("role", "name"), [("w1", "worker-1"), ("server", "server-0"), ("scheduler", "scheduler")])
def test_leaving_in_the_middle_is_a_failure_even_with_exit_code_0(role: str, name: str) -> None:
    early = roles(**{role: (0, 50.0)})
    assert judge(early, TRAINING, 52.9, LIMITS) is None
    ending = judge(early, TRAINING, 53.0, LIMITS)
    assert ending is not None
    assert ending.exit_code == 4
    assert ending.reason.startswith(f"{name} ended too early (exit code 0)")
    assert ending.culprits == (name,)


def test_whoever_has_finished_may_leave_before_the_others() -> None:
    some = RunProgress(frozenset({0, 1}), frozenset({1}))
    assert judge(roles(w1=(0, 50.0)), some, 90, LIMITS) is None
    assert judge(roles(w1=(0, 50.0), server=(0, 50.0)), some, 90, LIMITS) is not None
    assert judge(roles(w1=(0, 50.0), server=(0, 50.0)), DONE, 90, LIMITS) is None


def test_who_does_not_start_in_time_is_named() -> None:
    ending = judge(roles(), RunProgress(frozenset({0})), 100.0, LIMITS)
    assert ending is not None
    assert ending.exit_code == 5
    assert "worker-1 did not start training within 100 s" in ending.reason
    assert "started: worker-0" in ending.reason
    assert ending.culprits == ("worker-1",)


def test_the_whole_job_has_a_limit() -> None:
    assert judge(roles(), TRAINING, 999, LIMITS) is None
    ending = judge(roles(), TRAINING, 1000, LIMITS)
    assert ending is not None
    assert (ending.exit_code, ending.culprits) == (5, ())


def test_limits_come_from_the_cluster_file() -> None:
    assert Limits.of(Timeouts(launch_s=7, job_s=9)) == Limits(launch_s=7, job_s=9)


def test_signals_are_named() -> None:
    assert how_it_ended(-15) == "was killed by SIGTERM"
    assert how_it_ended(-64) == "was killed by SIGRTMAX"
    assert how_it_ended(-99) == "was killed by signal 99"


FOUR = RunProgress(frozenset(range(4)), iterations={0: 813, 1: 813, 2: 812, 3: 813}, founded=True)
ELASTIC = replace(LIMITS, elastic=True)


def four(scheduler: tuple[int | None, float] = (None, 0.0), **codes: tuple[int | None, float]) -> list[RoleStatus]:
    """Scheduler and four workers; keyword `w2=(code, ended_s)` says who ended."""
    workers = [RoleStatus(f"worker-{rank}", "worker", rank, *codes.get(f"w{rank}", (None, 0.0))) for rank in range(4)]
    return [RoleStatus("scheduler", "scheduler", None, *scheduler), *workers]


def test_an_elastic_job_goes_on_without_a_lost_worker_and_says_so_at_its_end() -> None:
    lost = {"w2": (-9, 50.0)}
    assert judge(four(**lost), FOUR, 90.0, ELASTIC) is None
    done = {f"w{rank}": (0, 80.0) for rank in (0, 1, 3)}
    ending = judge(four((0, 80.5), **lost, **done), replace(FOUR, finished=frozenset({0, 1, 3})), 81.0, ELASTIC)
    assert ending is not None
    assert (ending.exit_code, ending.culprits) == (0, ())
    assert ending.reason == "3 of 4 workers finished: worker-2 was killed by SIGKILL at iteration 812"


def test_who_leaves_on_notice_is_not_lost_and_the_end_names_it() -> None:
    left = replace(FOUR, left=frozenset({2}))
    assert judge(four(w2=(0, 50.0)), FOUR, 60.0, ELASTIC) is not None, "exit code 0 alone says nothing"
    for code in (0, -9):  # its host may go down before it has ended
        gone = {"w2": (code, 50.0)}
        assert judge(four(**gone), left, 90.0, ELASTIC) is None
        done = {f"w{rank}": (0, 80.0) for rank in (0, 1, 3)}
        ending = judge(four((0, 80.5), **gone, **done), replace(left, finished=frozenset({0, 1, 3})), 81.0, ELASTIC)
        assert ending is not None
        assert (ending.exit_code, ending.reason) == (0, "3 of 4 workers finished: worker-2 left at iteration 812")


def test_after_a_worker_has_left_the_others_count_alone() -> None:
    left = replace(FOUR, left=frozenset({2}))
    assert judge(four(w2=(0, 50.0), w1=(1, 60.0)), left, 60.0, ELASTIC) is None
    ending = judge(four(w2=(0, 50.0), w1=(1, 60.0), w0=(-9, 61.0), w3=(-9, 61.0)), left, 61.0, ELASTIC)
    assert ending is not None
    assert ending.reason.endswith("; no worker is left that has the state of the training")


def test_servers_leave_with_the_workers_that_are_left() -> None:
    done = {f"w{rank}": (0, 80.0) for rank in (0, 1)}
    gone = four((0, 80.5), w2=(-9, 50.0), **done)
    assert judge(gone, replace(FOUR, finished=frozenset({0, 1, 3})), 90.0, ELASTIC) is None, "worker-3 has finished too"


def test_the_others_may_wait_and_end_by_themselves_and_then_the_first_cause_ends_the_job() -> None:
    lost = {"w2": (-9, 50.0), "w0": (-9, 60.0)}
    assert judge(four(**lost), FOUR, 90.0, ELASTIC) is None
    why = "2 workers are left, elastic.min_workers is 3; iteration 813, the last one, is in the newest checkpoint"
    told = replace(FOUR, finishing=True, errors={0: "of an earlier process", 1: why, 3: why})
    one = four(**lost, w1=(6, 95.0))
    assert judge(one, told, 95.0, ELASTIC) is None, "the other one may still write the checkpoint"
    ending = judge(four(**lost, w1=(6, 95.0), w3=(6, 96.0)), told, 96.0, ELASTIC)
    assert ending is not None
    assert (ending.exit_code, ending.culprits, ending.by_loss) == (4, ("worker-2",), True)
    assert ending.reason.startswith("worker-2 was killed by SIGKILL at iteration 812")
    assert ending.reason.endswith(f"; {why}")


def test_newcomers_alone_do_not_keep_a_job_alive() -> None:
    lost = {"w0": (-9, 50.0), "w1": (-9, 50.0), "w2": (-9, 50.0)}
    assert judge(four(**lost), FOUR, 60.0, ELASTIC) is None
    ending = judge(four(**lost), replace(FOUR, lost=frozenset({3})), 60.0, ELASTIC)
    assert ending is not None, "worker-3 runs, but it was lost before and has not entered yet"
    assert ending.reason.endswith("; no worker is left that has the state of the training")


@pytest.mark.parametrize(
    ("code", "errors", "by_loss"),
    [
        (-9, {}, True),
        (1, {}, True),
        (1, {2: "ZeroDivisionError"}, False),
        (5, {2: "it gave up"}, True),
        (6, {2: "lost"}, True),
    ],
)
def test_an_error_of_the_script_is_no_loss(code: int, errors: dict[int, str], by_loss: bool) -> None:
    all_ended = four(w2=(code, 50.0), w0=(6, 51.0), w1=(6, 51.0), w3=(6, 51.0))
    ending = judge(all_ended, replace(FOUR, errors=errors), 51.0, ELASTIC)
    assert ending is not None and ending.by_loss is by_loss
    starting = judge(all_ended, replace(FOUR, founded=False, errors=errors), 51.0, ELASTIC)
    assert starting is not None and not starting.by_loss, "the members had not met"


@pytest.mark.parametrize("killed_last", [False, True])
def test_what_a_job_lost_last_tells_whether_it_ended_by_a_loss(killed_last: bool) -> None:
    codes = {"w0": (-9, 90.0 if killed_last else 10.0), "w1": (1, 50.0), "w2": (1, 50.0), "w3": (6, 51.0)}
    ending = judge(four(**codes), replace(FOUR, errors={1: "ZeroDivisionError", 2: "ZeroDivisionError"}), 95.0, ELASTIC)
    assert ending is not None and ending.by_loss is killed_last


def test_without_min_workers_and_before_the_members_have_met_a_lost_worker_ends_the_job() -> None:
    assert judge(four(w2=(-9, 50.0)), FOUR, 50.0, LIMITS) is not None
    starting = replace(FOUR, founded=False)
    assert judge(four(w2=(-9, 50.0)), starting, 50.0, ELASTIC) is not None


def test_a_lost_scheduler_ends_an_elastic_job_only_if_it_is_not_started_again() -> None:
    scheduler, *others = four((-9, 50.0), w2=(-9, 49.0))
    ending = judge([scheduler, *others], FOUR, 50.0, ELASTIC)
    assert ending is not None
    assert ending.reason == "scheduler was killed by SIGKILL"
    awaited = replace(scheduler, awaited=True)
    assert judge([awaited, *others], FOUR, 50.0, ELASTIC) is None
    assert judge([awaited, *others], replace(FOUR, founded=False), 50.0, ELASTIC) is not None, "all must meet there"


def test_nobody_waits_for_a_scheduler_that_is_lost_when_all_others_have_ended() -> None:
    scheduler, *others = four((-9, 80.5), **{f"w{rank}": (0, 80.0) for rank in range(4)})
    finished = replace(FOUR, finished=frozenset(range(4)))
    ending = judge([replace(scheduler, awaited=True), *others], finished, 81.0, ELASTIC)
    assert ending is not None
    assert (ending.exit_code, ending.reason) == (0, "all workers finished; scheduler was killed by SIGKILL")


def test_a_lost_worker_that_still_runs_is_left_behind_when_all_others_have_finished() -> None:
    lost = replace(DONE, finished=frozenset({0}), lost=frozenset({1}))
    assert left_behind(roles(), lost) == ["worker-1"]
    assert left_behind(roles(w1=(5, 50.0)), lost) == [], "it has ended"
    assert left_behind(roles(), replace(lost, finished=frozenset())) == [], "it may hear of it while the others train"
    assert left_behind(roles(), replace(lost, lost=frozenset())) == []


def with_servers(*codes: tuple[int | None, float], **others: tuple[int | None, float]) -> list[RoleStatus]:
    servers = [RoleStatus(f"server-{number}", "server", None, *code) for number, code in enumerate(codes)]
    return [*four(others.pop("scheduler", (None, 0.0)), **others), *servers]


def test_a_lost_server_that_still_runs_is_left_behind_while_the_others_train() -> None:
    lost = replace(TRAINING, lost_servers=frozenset({("server-0", "")}))
    assert left_behind(roles(), lost) == ["server-0"]
    assert left_behind(roles(), replace(lost, lost=frozenset({1}))) == ["server-0"]
    assert left_behind(roles(server=(-9, 50.0)), lost) == []


def test_a_server_that_was_started_again_is_left_behind_when_all_have_finished_without_it() -> None:
    again = [replace(role, incarnation="start-1") for role in roles()]
    away = replace(TRAINING, lost_servers=frozenset({("server-0", "start-0")}), servers_away=frozenset({"server-0"}))
    assert left_behind(again, away) == [], "it may enter"
    assert left_behind(again, replace(away, finished=frozenset({0, 1}))) == ["server-0"]


RUNS: tuple[int | None, float] = (None, 0.0)


def test_an_elastic_job_goes_on_without_lost_servers_and_says_so_at_its_end() -> None:
    assert judge(with_servers(RUNS, (-9, 50.0), (-9, 60.0)), FOUR, 90.0, ELASTIC) is None
    done = {f"w{rank}": (0, 80.0) for rank in range(4)} | {"scheduler": (0, 80.5)}
    finished = replace(FOUR, finished=frozenset(range(4)))
    ending = judge(with_servers((0, 80.5), (-9, 50.0), (-9, 60.0), **done), finished, 81.0, ELASTIC)
    assert ending is not None
    assert (ending.exit_code, ending.culprits) == (0, ())
    assert ending.reason == "all workers finished; server-1 was killed by SIGKILL; server-2 was killed by SIGKILL"
    both = judge(with_servers((0, 80.5), (-9, 50.0), **done | {"w2": (-9, 50.0)}), finished, 81.0, ELASTIC)
    assert both is not None
    assert both.reason.startswith("3 of 4 workers finished: worker-2 was killed by SIGKILL")
    assert both.reason.endswith("; server-1 was killed by SIGKILL")


def test_without_a_server_an_elastic_job_ends() -> None:
    ending = judge(with_servers((-9, 60.0), (-9, 50.0)), FOUR, 60.0, ELASTIC)
    assert ending is not None
    assert (ending.exit_code, ending.culprits) == (4, ("server-1",))
    assert ending.reason == "server-1 was killed by SIGKILL (also ended: server-0); no server is left"


def test_other_jobs_and_those_that_have_not_met_end_with_a_server() -> None:
    lost = with_servers(RUNS, (-9, 50.0))
    assert judge(lost, FOUR, 50.0, LIMITS) is not None
    assert judge(lost, replace(FOUR, founded=False), 50.0, ELASTIC) is not None


def test_a_worker_that_comes_later_is_not_late() -> None:
    limits = replace(LIMITS, elastic=True)
    there = [*roles(), RoleStatus("worker-2", "worker", 2, late=True)]
    assert judge(there, TRAINING, 101.0, limits) is None
    ending = judge([replace(role, late=False) for role in there], TRAINING, 101.0, limits)
    assert ending is not None and ending.reason.startswith("worker-2 did not start training within 100 s")
