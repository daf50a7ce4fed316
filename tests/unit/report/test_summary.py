import json
import os
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.summary import Outcome, write_summary
from dynamix_ps.report.summary_text import headline
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import (
    START_S,
    WINDOW,
    append,
    config,
    config_on_hosts,
    evaluation,
    finished,
    flow,
    measured,
    plan,
    plan_applied,
    role,
    started,
    whole_run,
    window,
)

GOOD = Outcome(0, "all workers finished", "none: equal speeds")
REQUIRED = {
    "comm", "comm_version", "workers", "policy", "iterations", "plans_applied", "samples_per_s", "final_accuracy",
    "time_to_accuracy_s", "wait_fraction", "heterogeneity", "degraded",
}  # fmt: skip


def degraded(rank: int, what: str, detail: str, after_s: float = 0.0) -> dict[str, Any]:
    return {"kind": "degraded", "rank": rank, "time_s": START_S + after_s, "what": what, "detail": detail}


def recovered(rank: int, what: str, after_s: float) -> dict[str, Any]:
    return {"kind": "recovered", "rank": rank, "time_s": START_S + after_s, "what": what}


def test_graphs_of_torch_compile_are_told_where_there_are_any(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), finished(0, 60, 3000, 12.0))
    write_summary(folder, config(2), GOOD)
    assert "torch.compile" not in folder.summary_md.read_text()
    compiled = {"kind": "compiled", "rank": 1, "time_s": START_S, "graphs": 3, "later": 2}
    append(folder.worker_file(1), started(1), compiled, compiled)  # of two trainings
    summary = write_summary(folder, config(2), GOOD)
    assert (summary["compiled_graphs"], summary["compiled_graphs_later"]) == ([0, 6], [0, 4])
    assert "| graphs by torch.compile | 0/6, after the first iteration 0/4 |" in folder.summary_md.read_text()


def test_a_job_that_has_begun_again_says_so_and_from_where(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), finished(0, 60, 3000, 12.0))
    assert write_summary(folder, config(1), GOOD)["restart"] is None
    again = {"kind": "job_restarted", "source": "launcher", "time_s": START_S, "restarts": 1, "checkpoint": "r/last.pt"}
    append(folder.events_file, again)
    summary = write_summary(folder, config(1), GOOD)
    assert headline(summary)[1] == "restart 1 of the job, from r/last.pt"
    assert "| begun again | restart 1 of the job, from r/last.pt |" in folder.summary_md.read_text()


def went_on(checkpoint: str | None = "/there/last.1.pt", iteration: int = 60, samples: int | None = 3840) -> Any:
    place = {"iteration": iteration, "epoch": 2, "samples": samples}
    return {"kind": "went_on", "rank": 0, "time_s": START_S, "checkpoint": checkpoint, **place}


def test_a_resumed_run_says_from_where_and_counts_itself_and_all_apart(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0, iteration=60), went_on(), finished(0, 90, 1000, 12.0))
    append(folder.worker_file(1), started(1, iteration=60), finished(1, 90, 888, 12.0))
    summary = write_summary(folder, config(2), GOOD)
    resumed = {"checkpoint": "/there/last.1.pt", "iteration": 60, "epoch": 2}
    assert summary["resumed"] == resumed | {"iterations_of_this_run": 30, "samples_of_all_runs": 5728}
    assert (summary["iterations"], summary["samples"], summary["samples_per_s"]) == (90, 1888, 157.333333)
    assert headline(summary)[1] == "went on from /there/last.1.pt, after 60 iterations"
    assert headline(summary)[2].startswith("90 iterations, 30 of them in this run, 12.0 s of training")
    page = folder.summary_md.read_text()
    assert "\nWent on from /there/last.1.pt, after 60 iterations.\n" in page
    assert "| iterations | 90, 30 of them in this run |\n| samples | 5,728, 1,888 of them in this run |" in page
    assert "| training time of this run | 12.0 s |" in page

    append(
        folder.events_file, {"kind": "launch", "source": "launcher", "time_s": START_S - 9, "resume": "/here/last.pt"}
    )
    append(folder.worker_file(0), went_on(samples=None))
    summary = write_summary(folder, config(2), GOOD)
    assert summary["resumed"]["checkpoint"] == "/here/last.1.pt", "as the launcher's host has it"
    assert summary["resumed"]["samples_of_all_runs"] is None
    assert "| samples of this run | 1,888 |" in folder.summary_md.read_text()


def test_a_run_that_began_anew_has_nothing_of_a_resume(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), finished(0, 90, 1000, 12.0))
    summary = write_summary(folder, config(1), GOOD)
    assert (summary["resumed"], summary["checkpoint"], summary["resume_command"]) == (None, None, None)
    assert headline(summary)[1].startswith("90 iterations, 12.0 s of training")
    assert "| training time | 12.0 s |" in folder.summary_md.read_text()


@pytest.mark.parametrize("train_s", [0.0, 0.004])
def test_a_resume_with_nothing_left_says_so(folder: RunFolder, train_s: float) -> None:
    append(folder.worker_file(0), started(0, iteration=60), went_on(), finished(0, 60, 0, train_s))
    summary = write_summary(folder, config(1), GOOD)
    says = "nothing was left to train: /there/last.1.pt has 60 iterations, the script asks for no more"
    assert headline(summary)[1:3] == [says, "60 iterations, 0 of them in this run"]
    assert f"\nN{says[1:]}.\n" in folder.summary_md.read_text()


def test_a_run_that_did_not_end_in_order_says_how_to_go_on(folder: RunFolder) -> None:
    crashed = Outcome(4, "worker-1 ended with exit code 1", "none")
    append(folder.worker_file(0), started(0))
    assert "to go on" not in "".join(headline(write_summary(folder, config(1), crashed)))

    last = folder.checkpoints_dir / "last.pt"
    last.touch()
    summary = write_summary(folder, config(1), crashed)
    by_hand = f"to go on from the newest checkpoint: start every worker with DYNAMIX_RESUME={last}"
    assert headline(summary)[-1] == by_hand

    argv = [
        "/bin/dynamix",
        "launch",
        "-c",
        "my cluster.yaml",
        "--resume",
        "old.pt",
        "--",
        "python",
        "t.py",
        "--resume",
        "x",
    ]
    folder.manifest_file.write_text(json.dumps({"argv": argv, "command": argv[-4:]}))
    summary = write_summary(folder, config(1), crashed)
    command = f"dynamix launch --resume {last} -c 'my cluster.yaml' -- python t.py --resume x"
    assert (summary["checkpoint"], summary["resume_command"]) == (str(last), command)
    assert headline(summary)[-1] == f"to go on from the newest checkpoint: {command}"
    assert f"\nTo go on from the newest checkpoint: `{command}`\n" in folder.summary_md.read_text()
    assert "to go on" not in "".join(headline(write_summary(folder, config(1), GOOD)))

    own = folder.path / "own.pt"
    append(folder.worker_file(0), {"kind": "saved", "rank": 0, "time_s": START_S, "checkpoint": str(own)})
    assert write_summary(folder, config(1), crashed)["checkpoint"] == str(last), "the other one is not there"
    own.touch()
    os.utime(last, (1, 1))
    assert write_summary(folder, config(1), crashed)["checkpoint"] == str(own)


def test_a_run_that_crashed_before_it_saved_goes_on_from_where_it_began(folder: RunFolder, tmp_path: Path) -> None:
    first = tmp_path / "first.pt"
    first.touch()
    append(folder.worker_file(0), started(0), went_on(str(first)))
    folder.manifest_file.write_text(json.dumps({"argv": ["dynamix", "launch", f"--resume={first}"], "command": ["a"]}))
    summary = write_summary(folder, config(1), Outcome(4, "worker-0 was killed", "none"))
    assert summary["resume_command"] == f"dynamix launch --resume {first}"


def test_what_ends_when_the_user_ends_an_elastic_job_is_no_loss(folder: RunFolder) -> None:
    def line(kind: str, after_s: float, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "time_s": START_S + after_s, **fields}

    gone = {"role": "worker", "reason": "it has exited"}
    for rank in range(3):
        append(folder.worker_file(rank), started(rank), window(rank, 0))
    append(
        folder.journal_file, line("lost", 2, slot=2, **gone), line("members", 2, workers=[0, 1], servers=[], took_s=0.1)
    )
    append(folder.events_file, line("stopping", 3, source="launcher"))
    append(folder.events_file, line("scheduler_exit", 4, source="launcher", how="was killed", restart_in_s=0.5))
    append(
        folder.journal_file, line("lost", 4, slot=0, **gone), line("members", 4, workers=[1], servers=[], took_s=0.1)
    )
    append(folder.worker_file(0), line("terminated", 4, rank=0, iteration=24))
    append(folder.worker_file(1), line("worker_left", 4, rank=1, iteration=25, workers=1))
    summary = write_summary(folder, config(3), Outcome(130, "interrupted by SIGINT", "none"))
    assert [row["state"] for row in summary["per_worker"]] == ["stopped", "running", "lost"]
    assert summary["losses"] == ["2 of 3 workers: worker 2 lost, no iterations finished without it"]
    assert (summary["departures"], summary["iterations"]) == ([], 24)


def test_what_the_guard_leaves_is_told_and_where_weights_came_back(folder: RunFolder) -> None:
    guarded = config(2).model_copy(update={"lr": "guard"})
    rollback = {"kind": "rollback", "time_s": START_S + 1, "iteration": 1040, "back_to": 1000, "lr_guard": 0.5}
    for rank in (0, 1):
        told = window(rank, 0, lr_guard=0.5)
        append(folder.worker_file(rank), started(rank), told, {**rollback, "rank": rank, "reason": "the loss rises"})
    summary = write_summary(folder, guarded, GOOD)
    assert summary["learning_rate"] == {"lr": "guard", "guard": 0.5, "rollbacks": [1040]}
    told = "the guard leaves 0.5 of it at the end; weights taken back and rate halved in iteration 1,040"
    assert f"| learning rate | {told} |" in folder.summary_md.read_text()
    write_summary(folder, config(2), GOOD)
    assert "| learning rate |" not in folder.summary_md.read_text()


def test_units_per_second_are_told_where_the_script_weighs_by_them(folder: RunFolder) -> None:
    for rank in (0, 1):
        append(
            folder.worker_file(rank),
            started(rank),
            window(rank, 0, units=3e4),
            window(rank, 1, duration_s=2.0, units=3e4),
        )
    summary = write_summary(folder, config(2), GOOD)
    assert summary["units_per_s"] == 2 * 6e4 / 3.0
    assert "| units (such as tokens) per second | 40,000 |" in folder.summary_md.read_text()
    append(folder.worker_file(0), finished(0, 60, 3000, 12.0))
    assert any("40,000 units/s" in line for line in headline(write_summary(folder, config(2), GOOD)))


def test_figures_of_a_run(folder: RunFolder) -> None:
    for rank in (0, 1):
        append(folder.worker_file(rank), started(rank), window(rank, 0), window(rank, 1, wait_s=0.1, compute_s=0.7))
        append(folder.worker_file(rank), plan_applied(rank, 1, [80, 48]), plan_applied(rank, 2, [90, 48]))
    append(folder.worker_file(1), window(1, 2, duration_s=2.0, wait_s=1.6))
    append(folder.worker_file(0), plan_applied(0, 3, [100, 48]))  # never by worker 1
    append(folder.journal_file, *(plan(n, [70 + 10 * n, 48]) for n in (1, 2, 3, 4)))
    append(folder.worker_file(0), evaluation(5, 0.7), evaluation(8, 0.86), evaluation(11, 0.84))
    append(folder.worker_file(0), finished(0, 60, 3000, 12.0))
    append(folder.worker_file(1), finished(1, 60, 2000, 12.5))
    summary = write_summary(folder, config(2, target_accuracy=0.85, seed=3), GOOD)
    assert set(summary) >= REQUIRED
    assert (summary["comm"], summary["comm_version"]) == ("byteps", "0.2.5")
    assert (summary["workers"], summary["policy"], summary["mode"]) == (2, "proportional", "adapt")
    assert (summary["exit_code"], summary["reason"], summary["run"]) == (0, "all workers finished", folder.path.name)
    assert summary["iterations"] == 60
    assert (summary["plans_published"], summary["plans_applied"]) == (4, 2)
    assert (summary["train_s"], summary["samples_per_s"]) == (12.5, 400.0)
    assert summary["units_per_s"] is None
    assert (summary["final_accuracy"], summary["time_to_accuracy_s"]) == (0.84, 8.0)
    assert [point["values"]["accuracy"] for point in summary["evaluations"]] == [0.7, 0.86, 0.84]
    assert summary["metrics"] == {
        "accuracy": {"higher_is_better": True, "last": 0.84, "best": 0.86},
        "loss": {"higher_is_better": False, "last": 0.16, "best": 0.14},
    }
    assert summary["wait_fraction"] == pytest.approx([0.2, 0.5])
    assert summary["batch_sizes_start"] == [64, 64]
    assert summary["batch_sizes_end"] == [90, 48]
    assert summary["degraded"] == []
    assert json.loads(folder.summary_json.read_text()) == summary


def test_a_lost_worker_has_no_size_at_the_end(folder: RunFolder) -> None:
    for rank in (0, 1, 2):
        append(folder.worker_file(rank), started(rank), window(rank, 0))
    lost = {"kind": "lost", "time_s": START_S + 1.5, "role": "worker", "slot": 2, "reason": "it has exited"}
    append(folder.journal_file, lost)
    for rank in (0, 1):
        append(folder.worker_file(rank), plan_applied(rank, 1, [96, 96, 0], time_s=START_S + 1.6))
    summary = write_summary(folder, config(3), GOOD)
    assert summary["batch_sizes_end"] == [96, 96, 0] and summary["plans_applied"] == 1
    assert [row["batch_size_end"] for row in summary["per_worker"]] == [96, 96, None]


@pytest.mark.parametrize(("target", "expected"), [(None, None), (0.99, None), (0.5, 5.0)])
def test_time_to_accuracy(folder: RunFolder, target: float | None, expected: float | None) -> None:
    append(folder.worker_file(0), started(0), evaluation(5, 0.7))
    assert write_summary(folder, config(1, target_accuracy=target), GOOD)["time_to_accuracy_s"] == expected


def test_empty_folder_after_a_failed_start(folder: RunFolder) -> None:
    summary = write_summary(folder, config(), Outcome(3, "BytePS is not installed", "none"))
    assert summary["exit_code"] == 3
    assert summary["final_accuracy"] is None
    assert summary["samples_per_s"] is None
    assert summary["wait_fraction"] == [None, None, None]
    assert summary["batch_sizes_start"] == [64, 64, 64]
    page = folder.summary_md.read_text()
    assert "**Ended with exit code 3**: BytePS is not installed" in page
    assert "No evaluation was recorded" in page


def test_failed_run_keeps_what_was_recorded(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0), window(0, 1), evaluation(2, 0.6))
    append(
        folder.worker_file(1),
        started(1),
        window(1, 0),
        {"kind": "failed", "rank": 1, "error": "loss is NaN", "iteration": 21},
    )
    with folder.worker_file(1).open("a") as file:
        file.write('{"kind": "window", "ra')  # killed in mid-line
    summary = write_summary(folder, config(2), Outcome(4, "worker 1 failed: loss is NaN", "none"))
    assert summary["iterations"] == 2 * WINDOW
    assert summary["train_s"] == 2.0  # first line to last window
    assert summary["samples_per_s"] == 3 * 64 * WINDOW / 2.0
    assert summary["final_accuracy"] == 0.6
    assert summary["per_worker"][1]["state"] == "failed"
    assert "failed: loss is NaN" in folder.summary_md.read_text()


def test_accuracy_that_is_not_a_number_is_null(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), evaluation(5, 0.7) | {"values": {"accuracy": None, "loss": None}})
    summary = write_summary(folder, config(1, target_accuracy=0.1), GOOD)
    assert summary["final_accuracy"] is None
    assert summary["time_to_accuracy_s"] is None


def test_an_error_is_never_shown_as_accuracy(folder: RunFolder) -> None:
    values = [{"mae": 0.0505, "wer": 0.2}, {"mae": 0.06, "wer": 0.3}]
    lines = [evaluation(5 * n, 0.0, values=one, higher_is_better={"mae": False}) for n, one in enumerate(values, 1)]
    append(folder.worker_file(0), started(0), *lines)
    summary = write_summary(folder, config(1, target_accuracy=0.01), GOOD)
    assert summary["final_accuracy"] is summary["time_to_accuracy_s"] is None
    assert summary["metrics"]["mae"] == {"higher_is_better": False, "last": 0.06, "best": 0.0505}
    assert summary["metrics"]["wer"]["best"] is None, "a value of unknown direction is not ranked"
    page = folder.summary_md.read_text()
    assert "| final mae | 0.06 (best: 0.0505) |" in page and "| final wer | 0.3 |" in page
    assert "| iteration | epoch | time | mae (lower is better) | wer |" in page
    assert "test mae 0.06, test wer 0.3" in headline(summary)[1]
    assert "accuracy of 1.00 %" in page and "final accuracy" not in page


def test_averaged_weights_stand_beside_the_weights_themselves(folder: RunFolder) -> None:
    """A column of their own in the same row; the target is about the accuracy of the weights themselves."""
    own = [evaluation(5 * n, 0.6 + n / 100, iteration=10 * n) for n in range(1, 17)]
    averaged = [
        line | {"values": {"averaged_accuracy": 0.7 + n / 100}, "higher_is_better": {"averaged_accuracy": True}}
        for n, line in enumerate(own, 1)
    ]
    append(folder.worker_file(0), started(0), *(line for pair in zip(own, averaged, strict=True) for line in pair))
    summary = write_summary(folder, config(1, target_accuracy=0.8), GOOD)
    assert (summary["final_accuracy"], summary["time_to_accuracy_s"]) == (pytest.approx(0.76), None)
    assert summary["metrics"]["averaged_accuracy"]["best"] == pytest.approx(0.86)
    assert "test accuracy 76.00 %, test averaged_accuracy 86.00 %" in headline(summary)[1]
    page = folder.summary_md.read_text()
    assert "8 of 16 evaluations" in page
    assert "| 76.00 % | 0.24 | 86.00 % |" in page


def test_runs_of_before_are_read(folder: RunFolder) -> None:
    line = evaluation(5, 0.7)
    del line["values"], line["higher_is_better"]
    append(folder.worker_file(0), started(0), line | {"accuracy": 0.7, "loss": 0.3})
    summary = write_summary(folder, config(1, target_accuracy=0.6), GOOD)
    assert (summary["final_accuracy"], summary["time_to_accuracy_s"]) == (0.7, 5.0)
    assert summary["metrics"]["loss"] == {"higher_is_better": False, "last": 0.3, "best": 0.3}


def test_what_was_measured(folder: RunFolder) -> None:
    values = {"network_source": "ebpf", "rtt_s": 0.001, "throttled": 0.2, "cpu_ratio": 0.25, "cpu_cores": 0.5}
    append(folder.worker_file(0), started(0), window(0, 0, **values), window(0, 1, duration_s=3.0, **values))
    append(
        folder.worker_file(0),
        window(0, 2, duration_s=4.0, summed_bytes_per_s=0.0, rtt_s=0.003, throttled=0.6, network_source="sockdiag"),
    )
    of_before = window(1, 0)
    del of_before["summed_bytes_per_s"]  # a run that was recorded before there was this value
    append(folder.worker_file(1), started(1), of_before)
    ours = [flow("w:1", "s:1", bytes_out=2e6, bytes_in=1e6, retransmits=4.0)]
    append(folder.role_file("worker-0"), role("worker-0", ours))
    append(folder.role_file("server-0"), role("server-0", [flow("s:1", "w:1", retransmits=3.0)]))
    first, second = write_summary(folder, config(2), GOOD)["per_worker"]
    assert (first["network_source"], first["retransmits"]) == ("ebpf", 7)
    assert (first["pushed_bytes"], first["pulled_bytes"]) == (2_000_000, 1_000_000)
    assert first["mean_rtt_s"] == pytest.approx(0.002)
    assert first["throttled_fraction"] == pytest.approx(0.4)
    assert first["cpu_fraction"] == 0.5
    assert second["network_source"] == "none"
    assert second["pushed_bytes"] is None and second["retransmits"] is None and second["mean_rtt_s"] is None
    page = folder.summary_md.read_text()
    assert "| 0 | 12.5 MB/s | ebpf | 2.0 MB | 1.0 MB | 7 | 2.000 ms | 50.00 % | 40.00 % |" in page
    assert "| 1 | - | none | - | - | - | - | - | - |" in page


def test_workers_of_one_host_stand_together_where_there_are_several(folder: RunFolder) -> None:
    for rank in range(3):
        append(folder.worker_file(rank), started(rank), window(rank, 0))
    summary = write_summary(folder, config_on_hosts("b", "a", "b"), GOOD)
    assert [row["host"] for row in summary["per_worker"]] == ["b", "a", "b"]
    lines = folder.summary_md.read_text().splitlines()
    assert [line.split(" | ")[:2] for line in lines if line.startswith(("| b |", "| a |"))] == [
        ["| b", "0"],
        ["| b", "2"],
        ["| a", "1"],
    ]
    write_summary(folder, config_on_hosts("b", "b", "b"), GOOD)
    assert "| host |" not in folder.summary_md.read_text()


def test_within_one_host_the_page_has_no_network(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0, cpu_ratio=0.25, cpu_cores=0.5))
    append(folder.role_file("worker-0"), role("worker-0", [flow("127.0.0.1:1", "127.0.1.1:2", bytes_out=2e6)]))
    summary = write_summary(folder, config(1), GOOD)
    assert summary["within_one_host"]
    assert summary["per_worker"][0]["pushed_bytes"] == 2_000_000, "the figures stay for programs"
    page = folder.summary_md.read_text()
    assert "| worker | sums | CPU | held back by quota |" in page and "| 0 | 25.0 MB/s | 50.00 % | - |" in page


@pytest.mark.parametrize(
    ("exposed_s", "server", "wire", "told"),
    [(0.3, "b:2", "float32", True), (0.1, "b:2", "float32", False), (0.3, "a:2", "float32", False)]
    + [(0.3, "b:2", wire, False) for wire in ("bf16", "int8")],
)
def test_where_workers_wait_for_the_network_the_summary_says_what_fewer_bytes_would_save(
    folder: RunFolder, exposed_s: float, server: str, wire: str, told: bool
) -> None:
    for rank in (0, 1):
        append(folder.worker_file(rank), started(rank), window(rank, 0, duration_s=1.0, push_pull_s=exposed_s))
    append(folder.role_file("worker-0"), role("worker-0", [flow("a:1", server, bytes_out=2e6)]))
    run = config(2)
    run = run.model_copy(update={"cluster": run.cluster.model_copy(update={"wire": wire})})
    summary = write_summary(folder, run, GOOD)
    says = "waited for the network in 30 % of the time; `wire: bf16` in section cluster halves the bytes and would save"
    for text in ("\n".join(headline(summary)), folder.summary_md.read_text()):
        assert (f"{says} about 15 % of the time" in text) == told
        assert ("wire" in text) == told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([], "float32 all the time"),
        ([(41, "bf16")], "bf16 at the end (float32, bf16 from iteration 41: because)"),
        (
            [(41, "bf16"), (1082, "int8")],
            "int8 at the end (float32, bf16 from iteration 41, int8 from iteration 1,082: because)",
        ),
        ([(40 * n, "bf16") for n in range(1, 7)], "bf16 at the end (6 changes, bf16 from iteration 240: because)"),
    ],
)
def test_the_wire_that_was_chosen_is_told(folder: RunFolder, changes: list[tuple[int, str]], told: str) -> None:
    lines = [
        {"kind": "wire_changed", "time_s": START_S, "rank": 0, "iteration": first, "wire": wire, "reason": "because"}
        for first, wire in changes
    ]
    append(folder.worker_file(0), started(0), window(0, 0, duration_s=1.0, push_pull_s=0.3), *lines)
    run = config(1)
    run = run.model_copy(update={"cluster": run.cluster.model_copy(update={"wire": "auto"})})
    summary = write_summary(folder, run, GOOD)
    assert f"wire: {told}; workers waited for the network in 30 % of the time" in headline(summary)


def test_noise_scale_is_that_of_smoothed_parts(folder: RunFolder) -> None:
    lines = [window(0, n, noise_variance=v, noise_signal=s) for n, (v, s) in enumerate([(100.0, 2.0), (-20.0, 1.0)])]
    append(folder.worker_file(0), started(0), *lines)
    scale = write_summary(folder, config(1), GOOD)["noise_scale"]
    assert scale == pytest.approx((0.9 * 100 - 20) / (0.9 * 2 + 1))
    assert "| gradient noise scale at the end | 25 samples |" in folder.summary_md.read_text()


class TestDegraded:
    def test_fallback_of_the_network_metrics_names_who_and_why(self, folder: RunFolder) -> None:
        for name in ("worker-0", "server-0"):
            lost = {"kind": "degraded", "time_s": START_S, "what": "network metrics", "detail": "not permitted"}
            append(folder.role_file(name), role(name), lost)
        append(folder.worker_file(0), started(0), window(0, 0) | measured(0, 0, source="sockdiag"))
        (line,) = write_summary(folder, config(2), GOOD)["degraded"]
        assert line == "network metrics (server-0, worker-0): not permitted"

    def test_one_line_for_one_outage_seen_by_all(self, folder: RunFolder) -> None:
        for rank in (0, 1):
            append(folder.worker_file(rank), degraded(rank, "arbitrator", "connection refused"))
        (line,) = write_summary(folder, config(2), GOOD)["degraded"]
        assert line == "arbitrator (worker-0, worker-1): connection refused"

    def test_recovery_is_told_only_when_all_recovered(self, folder: RunFolder) -> None:
        for rank in (0, 1):
            append(folder.worker_file(rank), degraded(rank, "arbitrator", "refused"))
        append(folder.worker_file(0), recovered(0, "arbitrator", 1.0))
        assert "recovered" not in write_summary(folder, config(2), GOOD)["degraded"][0]
        append(folder.worker_file(1), recovered(1, "arbitrator", 2.0))
        assert "recovered" in write_summary(folder, config(2), GOOD)["degraded"][0]
        append(folder.worker_file(1), degraded(1, "arbitrator", "refused", 3.0))
        assert "recovered" not in write_summary(folder, config(2), GOOD)["degraded"][0]

    def test_restarts_stalls_outcome_and_launcher(self, folder: RunFolder) -> None:
        begin = {"kind": "started", "time_s": START_S, "policy": "ppo", "workers": 2}
        append(folder.journal_file, begin | {"restarts": 0}, begin | {"restarts": 1}, begin | {"restarts": 2})
        append(folder.worker_file(0), {"kind": "stall", "rank": 0, "iteration": 33, "waited_s": 10.0, "missing": [1]})
        append(folder.worker_file(0), started(0), evaluation(3, 0.5))
        recorder = Recorder(folder, config(2))
        recorder.event("degraded", what="cgroup", detail="not permitted")
        recorder.close()
        outcome = Outcome(0, "ok", "slow-down in the hook", ("no CPU quota: slow-down in the hook",))
        summary = write_summary(folder, config(2), outcome)
        lines = summary["degraded"]
        assert lines[0] == "no CPU quota: slow-down in the hook"
        assert "arbitrator restarted 2 times" in lines
        assert any(line.startswith("stall (worker-0): iteration 33 waited for worker 1") for line in lines)
        assert any(line.startswith("cgroup (launcher): not permitted") for line in lines)
        assert len(lines) == 4
        assert len(summary["evaluations"]) == 1  # the recorder's copies of the workers' lines are not counted again

    def test_page_lists_them(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), degraded(0, "data", "digits in place of Fashion-MNIST"))
        write_summary(folder, config(2), GOOD)
        assert "- data (worker-0): digits in place of Fashion-MNIST" in folder.summary_md.read_text()


def test_page_shows_plots_overview_first(folder: RunFolder) -> None:
    whole_run(folder)
    for name in ("evaluation", "overview", "gradients"):
        (folder.plots_dir / f"{name}.png").write_bytes(b"png")
    write_summary(folder, config(), GOOD)
    page = folder.summary_md.read_text()
    assert page.index("plots/overview.png") < page.index("plots/evaluation.png") < page.index("plots/gradients.png")
    assert "| 0 | finished |" in page


def test_long_accuracy_table_is_thinned_and_keeps_the_result(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), *(evaluation(n, n / 100) for n in range(1, 31)))
    assert len(write_summary(folder, config(1), GOOD)["evaluations"]) == 30
    page = folder.summary_md.read_text()
    assert "10 of 30 evaluations" in page
    assert "| 30.00 % |" in page and "| 27.00 % |" in page and "| 29.00 % |" not in page


def test_safety_net_is_counted_and_named_only_where_it_acted(folder: RunFolder) -> None:
    assert "safety net" not in page(folder)
    taken_over = {"kind": "fallback", "time_s": START_S, "window": 3, "detail": "proportional shares for 2 windows"}
    kept = {"kind": "kept", "time_s": START_S, "window": 4, "version": 1, "batch_sizes": [90, 38], "fallback": True}
    append(folder.journal_file, plan(1, [90, 38], fallback=True), taken_over, kept, kept | {"fallback": False})
    summary = write_summary(folder, config(2), GOOD)
    assert summary["safety_net"] == {"times": 1, "windows": 2}
    assert "| safety net | once, 2 windows by proportional shares" in page(folder)


def page(folder: RunFolder) -> str:
    write_summary(folder, config(2), GOOD)
    return folder.summary_md.read_text()


def test_where_quotas_make_the_speeds_the_page_says_why_workers_wait(folder: RunFolder) -> None:
    assert "CPU quota" not in page(folder)
    write_summary(folder, config(2), Outcome(0, "ok", "cgroup v1 CPU quota: 0.91, 0.46 cores"))
    assert "A CPU quota stops a worker for the rest of a period" in folder.summary_md.read_text()


def test_the_gain_is_told_with_the_result(folder: RunFolder) -> None:
    for rank, size in ((0, 96), (1, 32)):
        first, later = window(rank, 1, plan_version=0, duration_s=2.0), window(rank, 2, size, plan_version=1)
        append(folder.worker_file(rank), started(rank), first, later)
    summary = write_summary(folder, config(2), GOOD)
    gain = summary["gain"]
    assert gain["samples_per_s_ratio"] == 2.0
    assert (gain["first"]["batch_sizes"], gain["last"]["batch_sizes"]) == ([64, 64], [96, 32])
    assert f"**Gain**: {gain['text']}." in folder.summary_md.read_text()
    assert gain["text"] in headline(summary)[-1]
    assert gain["progress"] == "" and gain["progress_per_sample_ratio"] is None


def test_without_figures_there_is_still_a_headline(folder: RunFolder) -> None:
    summary = write_summary(folder, config(2), Outcome(3, "BytePS is not installed", "none"))
    assert headline(summary) == [
        "ended with exit code 3: BytePS is not installed",
        "0 iterations",
        "gain: unknown: no window was measured",
    ]
