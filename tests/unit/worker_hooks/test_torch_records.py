"""What a training in one process records: windows, evaluations, degradations."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from dynamix_ps.report.summary import read_told, state_of
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.worker_hooks.local_run import SAMPLES, lines, make_data, make_run, settings_for, train, weights
from worker_hooks.session import Session


@pytest.mark.parametrize("prefetch", [0, 3])
def test_observe_changes_nothing(tmp_path, prefetch):
    plain = make_run()
    observed = make_run(tmp_path, mode="observe", prefetch=prefetch)
    for mine, theirs in zip(train(plain, epochs=2), train(observed, epochs=2), strict=True):
        assert torch.equal(mine, theirs)
    observed.close()
    plain.close()
    assert torch.equal(weights(plain), weights(observed))
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert [w["window"] for w in windows] == [0, 1, 2, 3]
    assert [w["first_iteration"] for w in windows] == [1, 4, 7, 10], "the first iteration is in none"
    assert [w["samples"] for w in windows] == [24, 18, 24, 21]


def test_windows_tell_where_the_time_went_and_how_training_goes(tmp_path):
    run = make_run(tmp_path, mode="observe")
    train(run, epochs=3)
    run.close()
    for window in (line for line in lines(tmp_path) if line["kind"] == "window"):
        parts = sum(window[f"{name}_s"] for name in ("input", "compute", "push_pull", "wait", "outside"))
        assert parts == pytest.approx(window["duration_s"], rel=1e-6)
        assert window["global_loss"] == pytest.approx(window["loss"], rel=1e-4)
        assert window["accuracy"] == pytest.approx(window["global_accuracy"], rel=1e-4)
        assert window["grad_sq_local"] == pytest.approx(window["grad_sq_global"], rel=1e-4)
        assert window["memory_bytes"] > 1e6
        assert 0 <= window["gc_s"] <= window["duration_s"]
        done = (window["first_iteration"] + window["iterations"]) * 8 / SAMPLES
        assert int(window["epoch"]) <= window["epoch"] == pytest.approx(done, abs=0.5)
    assert any(window["epoch"] % 1 for window in lines(tmp_path) if window["kind"] == "window")


@pytest.fixture
def later(monkeypatch):
    """What it is called with, in seconds, seems to have passed."""
    passed, now_s = [0.0], time.perf_counter
    monkeypatch.setattr("worker_hooks.observe.stopwatch.time.perf_counter", lambda: now_s() + sum(passed))
    return passed.append


@pytest.mark.parametrize("where", ["between two batches", "between two loops", "between two loops of epochs"])
def test_what_a_worker_does_beside_training_is_no_speed(tmp_path, later, where):
    run = make_run(tmp_path, mode="observe")

    def loop(**limits):
        for inputs, targets in run.batches(**limits):
            run.optimizers[0].zero_grad()
            run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
            run.optimizers[0].step()
            if where == "between two batches" and run.iteration == 8:
                later(1000)

    if where == "between two batches":
        loop(iterations=14)
    elif where == "between two loops":
        loop(iterations=8)
        later(1000)
        loop(iterations=14)
    else:
        for _ in run.epochs(2):
            loop()
            later(1000)
    run.close()
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert sum(window["outside_s"] > 999 for window in windows) == 1
    for window in windows:
        assert window["duration_s"] - window["outside_s"] < 100 and window["compute_s"] + window["input_s"] < 100


def test_what_recurs_in_every_iteration_is_speed(tmp_path, later):
    run = make_run(tmp_path, mode="observe")
    for inputs, targets in run.batches(iterations=14):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        later(1000)
    run.close()
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert all(window["compute_s"] > 2999 and window["outside_s"] == 0 for window in windows)


def test_windows_tell_how_far_training_is_and_whether_the_script_lowers_its_rate(tmp_path):
    run = make_run(tmp_path, mode="observe", lr_rule="linear", reference_batch=4)  # the factor is not the script's
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizers[0], step_size=7, gamma=0.5)
    for inputs, targets in run.batches(iterations=14):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        schedule.step()
    train(run, iterations=20)
    run.close()
    told = [(w["trained_ratio"], w["lr_ratio"]) for w in lines(tmp_path) if w["kind"] == "window"]
    assert told[:4] == [(4 / 14, 1.0), (7 / 14, 0.5), (10 / 14, 0.5), (13 / 14, 0.5)]
    assert told[4:] == [(None, 0.25)] * 2, "the end was none"


@pytest.mark.parametrize("asks", ["a loop over passes", "epochs"])
def test_one_pass_may_be_the_first_of_many_unless_the_script_names_the_end(tmp_path, asks):
    run = make_run(tmp_path, mode="observe")
    if asks == "epochs":
        for _ in run.epochs(1):
            train(run)
    else:
        train(run, epochs=1)
    assert run.progress == 1
    run.close()
    told = [window["trained_ratio"] for window in lines(tmp_path) if window["kind"] == "window"]
    assert told
    assert all((one is None) == (asks != "epochs") for one in told)


def test_the_first_window_knows_gradient_norms(tmp_path):
    run = make_run(tmp_path, mode="observe", window=20)
    train(run, iterations=6)
    run.close()
    (window,) = (line for line in lines(tmp_path) if line["kind"] == "window")
    assert window["grad_sq_local"] > 0


def test_a_new_plan_and_the_end_of_a_pause_begin_the_window_anew(tmp_path, monkeypatch):
    run, begun = make_run(tmp_path, mode="adapt"), []
    monkeypatch.setattr(run.training.session.reporter, "begin_window", lambda: begun.append(run.iteration))
    monkeypatch.setattr(run.training.session, "newest_plan", lambda: Plan(1, (4,)) if run.iteration >= 2 else None)
    for inputs, targets in run.batches(iterations=6):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        if run.iteration == 5:
            with run.paused():
                assert begun == [1, 3], "the plan agreed in iteration 2 is in force from 3 on"
    assert begun == [1, 3, 5], "the first iteration is in no window"


def test_evaluations_are_recorded_under_the_names_and_directions_of_the_script(tmp_path):
    run = make_run(tmp_path)
    assert run.evaluate(make_data(), lambda x, y: len(y)) == 1.0
    assert run.evaluate(make_data(), lambda x, y: (len(y), y.sum())) == (1.0, pytest.approx(0.5, abs=0.2))
    assert run.evaluate(make_data(), lambda x, y: {"wer": len(y)}, lower_is_better="wer") == {"wer": 1.0}
    run.close()
    told = [line for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert [list(line["values"]) for line in told] == [["value"], ["value_1", "value_2"], ["wer"]]
    assert [line["higher_is_better"] for line in told] == [{}, {}, {"wer": False}]


def test_what_the_script_has_measured_itself_is_recorded_like_an_evaluation(tmp_path):
    run = make_run(tmp_path)
    train(run, iterations=3)
    run.record({"accuracy": torch.tensor(0.5), "wer": 0.25}, lower_is_better="wer")
    with pytest.raises(TrainingError, match="a direction is declared for"):
        run.record({"accuracy": 0.5}, lower_is_better="wer")
    run.close()
    (told,) = [line for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert told["values"] == {"accuracy": 0.5, "wer": 0.25}
    assert told["higher_is_better"] == {"accuracy": True, "wer": False}
    assert (told["iteration"], told["samples"], told["trained_samples"]) == (3, None, 24)
    assert state_of(read_told(RunFolder(tmp_path)), 1).progress.evaluations[0].values["accuracy"] == 0.5


def test_evaluation_is_exact_and_leaves_records_and_mode_alone(tmp_path, monkeypatch):
    clock = {"now_s": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now_s"])
    run = make_run(tmp_path, mode="observe", window=1)

    def score(inputs, targets):
        assert not run.models[0].training
        assert not torch.is_grad_enabled()
        clock["now_s"] += 1000.0
        logits = run.models[0](inputs)
        loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
        return {"accuracy": (logits.argmax(1) == targets).sum(), "loss": loss}

    for inputs, targets in run.batches(iterations=4):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        clock["now_s"] += 1.0
        run.optimizers[0].step()
        found = run.evaluate(make_data(), score, batch_size=7)
    assert run.models[0].training
    inputs, targets = make_data().tensors
    with torch.no_grad():
        logits = run.models[0](inputs)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == targets).float().mean()))
    assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-5)
    run.close()
    assert [w["duration_s"] for w in lines(tmp_path) if w["kind"] == "window"] == [1.0, 1.0]
    told = [line for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert [one["iteration"] for one in told] == [1, 2, 3, 4]
    assert told[-1]["values"] == found
    assert told[-1]["higher_is_better"] == {"accuracy": True, "loss": False}
    assert [one["trained_samples"] for one in told] == [8, 16, 24, 32]
    assert [one["trained_s"] for one in told] == [1.0, 2.0, 3.0, 4.0]
    kinds = [line["kind"] for line in lines(tmp_path)]
    assert [kind for kind in kinds if kind in ("paused", "evaluation", "resumed")][:3] == [
        "paused",
        "resumed",
        "evaluation",
    ]


def test_a_data_plane_that_falls_back_is_in_the_summary_of_every_run(tmp_path, monkeypatch):
    def reserves_nothing(comm, values, dtype):
        comm._degraded("sums travel by TCP, though roles are on one host: no memory.\nNext: look")
        return np.zeros(values, dtype)

    comm = Session(settings_for(), "torch").comm
    monkeypatch.setattr(comm, "degradations", ())
    monkeypatch.setattr(Comm, "allocate", reserves_nothing)
    for folder in (tmp_path / "one", tmp_path / "two"):  # a process has one data plane, and may train more than once
        (folder / "workers").mkdir(parents=True)
        make_run(folder).close()
        state = state_of(read_told(RunFolder(folder)), 1)
        assert list(map(str, state.degradations.values())) == [
            "data plane (worker-0): sums travel by TCP, though roles are on one host: no memory. Next: look"
        ]
