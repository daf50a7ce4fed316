"""The torch hook in one process (comm: local), as a script sees it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dynamix_ps.comm import Comm
from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from dynamix_ps.report.summary import read_told, state_of
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.batches import Batch
from worker_hooks.iteration import IterationInFlight
from worker_hooks.sampler import Cursor, Step
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.run import Run

SAMPLES = 50


def settings_for(folder: Path | None = None, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "comm": "local",
        "mode": "off",
        "sizes": (8,),
        "bounds": None,
        "unit": "samples",
        "seed": 5,
        "window": 3,
        "lr_rule": "none",
        "reference_batch": None,
        "prefetch": 0,
        "bucket_bytes": 4_000_000,
        "checkpoint_every": 0,
        "checkpoint_on_term": True,
        "network": "off",
        "timeouts": Timeouts(),
        "run_dir": folder,
        "run_id": "test",
        "arbitrator": None,
        "token": "",
        "resume": None,
        "slowdown": 1.0,
    }
    return Settings(**(values | changes))


def make_data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())


def make_run(folder: Path | None = None, **changes: Any) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    return Run([model], [optimizer], make_data(), Session(settings_for(folder, **changes), "torch"))


def train(run: Run, **limits: int) -> list[torch.Tensor]:
    """The usual loop; returns the inputs of every batch."""
    seen = []
    for inputs, targets in run.batches(**limits):
        seen.append(inputs)
        run.optimizers[0].zero_grad()
        logits = run.models[0](inputs)
        run.backward(nn.functional.cross_entropy(logits, targets), correct=(logits.argmax(1) == targets).sum())
        run.optimizers[0].step()
    return seen


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.models[0].parameters()])


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "workers" / "worker-0.jsonl").read_text().splitlines()]


def test_a_run_is_plain_training_on_its_batches():
    run = make_run()
    seen = train(run, epochs=2)
    run.close()
    assert [len(batch) for batch in seen] == 2 * ([8] * 5 + [5, 5])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs in seen:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long()).backward()
        optimizer.step()
    assert torch.allclose(weights(run), torch.cat([p.detach().flatten() for p in model.parameters()]), atol=1e-6)


def train_weighted(run: Run, units: list[float], **limits: int) -> list[float]:
    """The usual loop with these weights, one per iteration; returns the learning rates of the steps."""
    rates: list[float] = []
    optimizer = run.optimizers[0]
    handle = optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    for inputs, targets in run.batches(**limits):
        optimizer.zero_grad()
        logits = run.models[0](inputs)
        loss = nn.functional.cross_entropy(logits, targets)
        run.backward(loss, correct=units[run.iteration] / 4, weight=torch.tensor(units[run.iteration]))
        optimizer.step()
    handle.remove()
    return rates


def test_a_worker_alone_needs_no_weight():
    """The mean over all tokens is its own, bit by bit."""
    without, with_weight = make_run(), make_run()
    train(without, iterations=5)
    train_weighted(with_weight, [3.7, 1000.1, 1.0, 0.1, 7.0], iterations=5)
    assert torch.equal(weights(without), weights(with_weight))
    for run in (without, with_weight):
        run.close()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_weight_that_is_none_stops_before_the_weights_change(bad):
    run = make_run()
    before = weights(run)
    with pytest.raises(TrainingError, match=r"weight= of run.backward\(\) .* in iteration 0"):
        train_weighted(run, [bad], iterations=1)
    assert torch.equal(weights(run), before)
    run.close()


def test_the_learning_rate_follows_the_units_in_the_sum(tmp_path):
    units = [80.0, 160.0, 60.0, 100.0]
    run = make_run(tmp_path, mode="adapt", lr_rule="linear")
    rates = train_weighted(run, units, iterations=4)
    run.close()
    means = [10, 15, 12.5, 12.5]  # units per sample so far; batches of 8 samples
    assert rates == pytest.approx([0.1 * one / mean / 8 for one, mean in zip(units, means, strict=True)])


def test_a_resumed_run_goes_on_with_its_mean_of_units(tmp_path):
    units = [80.0, 160.0, 60.0, 100.0, 90.0, 70.0]
    whole, first = make_run(lr_rule="linear"), make_run(lr_rule="linear")
    train_weighted(whole, units, iterations=6)
    train_weighted(first, units, iterations=3)
    first.save(tmp_path / "x.pt")
    second = make_run(lr_rule="linear", resume=tmp_path / "x.pt")
    train_weighted(second, units, iterations=6)
    assert torch.equal(weights(whole), weights(second))
    for run in (whole, first, second):
        run.close()


def test_windows_tell_the_units(tmp_path):
    run = make_run(tmp_path, mode="observe")
    train_weighted(run, [10.0 * (number + 1) for number in range(8)], iterations=8)
    run.close()
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert [w["units"] for w in windows] == [20 + 30 + 40, 50 + 60 + 70]
    assert [w["global_units"] for w in windows] == [w["units"] for w in windows]
    assert [w["accuracy"] for w in windows] == pytest.approx([0.25, 0.25])
    assert [w["global_loss"] for w in windows] == pytest.approx([w["loss"] for w in windows], rel=1e-5)
    assert all(w["samples"] == 24 for w in windows[:1])


def test_every_samples_counts_the_samples_of_all_passes():
    run = make_run()
    due = []
    for inputs, targets in run.batches(epochs=2):  # batches of 8, the last two of an epoch of 5
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        assert not run.every_samples(1)  # nothing is done in this iteration yet
        run.optimizers[0].step()
        if run.every_samples(20):
            due.append(run.iteration)
    run.close()
    assert due == [3, 5, 9, 11, 14]  # 24, 40, 66, 82 and 100 samples
    assert not run.every_samples(1)


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
        parts = window["input_s"] + window["compute_s"] + window["push_pull_s"] + window["wait_s"]
        assert parts == pytest.approx(window["duration_s"], rel=1e-6)
        assert window["global_loss"] == pytest.approx(window["loss"], rel=1e-4)
        assert window["accuracy"] == pytest.approx(window["global_accuracy"], rel=1e-4)
        assert window["grad_sq_local"] == pytest.approx(window["grad_sq_global"], rel=1e-4)
        assert window["memory_bytes"] > 1e6
        assert 0 <= window["gc_s"] <= window["duration_s"]
        done = (window["first_iteration"] + window["iterations"]) * 8 / SAMPLES
        assert int(window["epoch"]) <= window["epoch"] == pytest.approx(done, abs=0.5)
    assert any(window["epoch"] % 1 for window in lines(tmp_path) if window["kind"] == "window")


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


def test_the_first_window_knows_gradient_norms(tmp_path):
    run = make_run(tmp_path, mode="observe", window=20)
    train(run, iterations=6)
    run.close()
    (window,) = (line for line in lines(tmp_path) if line["kind"] == "window")
    assert window["grad_sq_local"] > 0


def test_a_new_plan_and_the_end_of_a_pause_begin_the_window_anew(tmp_path, monkeypatch):
    run, begun = make_run(tmp_path, mode="adapt"), []
    monkeypatch.setattr(run._session.reporter, "begin_window", lambda: begun.append(run.iteration))
    monkeypatch.setattr(run._session, "newest_plan", lambda: Plan(1, (4,)) if run.iteration >= 2 else None)
    for inputs, targets in run.batches(iterations=6):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        if run.iteration == 5:
            with run.paused():
                assert begun == [1, 3], "the plan agreed in iteration 2 is in force from 3 on"
    assert begun == [1, 3, 5], "the first iteration is in no window"
    run.close()


def test_evaluations_are_recorded_under_the_names_and_directions_of_the_script(tmp_path):
    run = make_run(tmp_path)
    assert run.evaluate(make_data(), lambda x, y: len(y)) == 1.0
    assert run.evaluate(make_data(), lambda x, y: (len(y), y.sum())) == (1.0, pytest.approx(0.5, abs=0.2))
    assert run.evaluate(make_data(), lambda x, y: {"wer": len(y)}, lower_is_better="wer") == {"wer": 1.0}
    run.close()
    told = [line for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert [list(line["values"]) for line in told] == [["value"], ["value_1", "value_2"], ["wer"]]
    assert [line["higher_is_better"] for line in told] == [{}, {}, {"wer": False}]


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


def test_the_learning_rate_follows_the_fewer_samples_at_the_end_of_an_epoch(tmp_path):
    run = make_run(tmp_path, mode="adapt", lr_rule="sqrt")
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    train(run, iterations=8)
    assert used == pytest.approx([0.1] * 5 + [0.1 * math.sqrt(5 / 8)] * 2 + [0.1])
    run.close()


def test_the_learning_rate_of_accumulated_batches_is_that_of_one(tmp_path):
    run = make_run(tmp_path, mode="adapt", lr_rule="linear")
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    for number, (inputs, targets) in enumerate(run.batches(iterations=4)):
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets) / 2
        if number % 2:
            run.backward(loss)
            run.optimizers[0].step()
            run.optimizers[0].zero_grad()
        else:
            loss.backward()
    run.close()
    assert used == pytest.approx([0.1, 0.1])


def test_the_learning_rate_is_for_the_first_sizes_of_the_cluster_file(tmp_path, monkeypatch):
    run = make_run(tmp_path, mode="adapt", lr_rule="sqrt", reference_batch=2)
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    train(run, iterations=1)
    assert used == [pytest.approx(0.2)]  # plan 0 has 8
    run.close()


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 2.25), ("sqrt", 1.5)])
def test_the_learning_rate_follows_the_plan_but_not_the_scheduler(tmp_path, monkeypatch, rule, factor):
    run = make_run(tmp_path, mode="adapt", lr_rule=rule)
    monkeypatch.setattr(run._session, "newest_plan", lambda: Plan(3, (18,)))
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    train(run, iterations=2)
    assert used == pytest.approx([0.1, 0.1 * factor])
    assert run.optimizers[0].param_groups[0]["lr"] == 0.1
    run.close()
    (applied,) = [line for line in lines(tmp_path) if line["kind"] == "plan_applied"]
    assert (applied["version"], applied["iteration"], applied["lr_factor"]) == (3, 1, pytest.approx(factor))


def test_clipping_after_synchronize_sees_the_global_gradient():
    run = make_run()
    for inputs, targets in run.batches(iterations=1):
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.synchronize()
        norm = nn.utils.clip_grad_norm_(run.models[0].parameters(), 1e-3)
        assert norm > 1e-3
        run.optimizers[0].step()
    assert sum(float((p.grad**2).sum()) for p in run.models[0].parameters()) == pytest.approx(1e-6, rel=1e-2)
    run.close()


def test_a_resumed_script_repeats_its_loops_and_goes_on_in_the_right_one(tmp_path):
    def loops(run: Run, until: int | None = None) -> list[int]:
        found = []
        for _ in range(3):
            before = run.iteration
            for inputs, targets in run.batches(epochs=1):
                run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
                run.optimizers[0].step()
                if run.iteration == until:
                    run.save(tmp_path / "x.pt")
                    return found
            found.append(run.iteration - before)
        return found

    first = make_run()
    assert loops(first, until=10) == [7]
    first.close()
    second = make_run(resume=tmp_path / "x.pt")
    assert loops(second) == [0, 4, 7]
    second.close()


def test_a_batch_that_the_script_leaves_the_loop_with_comes_again():
    run = make_run()
    left = next(iter(run.batches(epochs=1)))
    seen = train(run, epochs=1)
    assert torch.equal(seen[0], left[0])
    assert sum(map(len, seen)) == SAMPLES
    run.close()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_batch_whose_gradients_are_of_a_layer_just_thawed_counts(leaves):
    """Its backward comes before anything asks which parameters are trained now."""
    run = make_run()
    model, optimizer = run.models[0], run.optimizers[0]
    model[0].requires_grad_(False)
    seen, losses = [], []
    while len(seen) < 2:
        for inputs, targets in run.batches(iterations=2):
            seen.append(inputs)
            loss = nn.functional.cross_entropy(model(inputs), targets) / 2
            if len(seen) == 2:
                run.backward(loss)
                optimizer.step()
            else:
                model[0].requires_grad_(True)
                model[2].requires_grad_(False)
                loss = nn.functional.cross_entropy(model(inputs), targets) / 2
                loss.backward()
            losses.append(loss.item())
            if leaves:
                break
    assert not torch.equal(seen[0], seen[1])
    assert run._now.samples == sum(map(len, seen))
    assert run._now.loss == pytest.approx(sum(losses))
    run.close()


def test_two_loops_at_once_are_refused_and_one_that_was_left_is_not():
    run = make_run()
    first = run.batches(iterations=3)
    next(first)
    train(run, iterations=2)
    assert run.iteration == 2
    with pytest.raises(TrainingError, match="two loops over"):
        next(first)
    train(run, iterations=4)
    assert run.iteration == 4
    run.close()


def test_a_hook_of_a_parameter_is_refused_also_later():
    run = make_run()
    train(run, iterations=1)
    handle = run.models[0][2].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with pytest.raises(TrainingError, match=r"parameter 2.weight has a hook .*gradient of this worker alone"):
        train(run, iterations=2)
    handle.remove()
    train(run, iterations=3)
    run.close()


def test_wrappers_that_average_gradients_themselves_are_refused():
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 2)

    model = DistributedDataParallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match="wrapped in DistributedDataParallel"):
        Run([model], [optimizer], make_data(), Session(settings_for(), "torch"))


def test_misuse_is_named():
    run = make_run()
    with pytest.raises(TrainingError, match=r"epochs=\.\.\. or iterations"):
        next(run.batches())
    with pytest.raises(TrainingError, match="inside"):
        run.backward(torch.zeros(1, requires_grad=True).sum())
    loop = run.batches(iterations=3)
    inputs, targets = next(loop)
    with pytest.raises(TrainingError, match=r"without run\.backward"):
        run.optimizers[0].step()
    run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
    nn.functional.cross_entropy(run.models[0](inputs), targets).backward()
    with pytest.raises(TrainingError, match=r"loss\.backward\(\) has added gradients of this worker alone"):
        run.optimizers[0].step()
    run.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(bad):
    run = make_run()
    before = weights(run)
    for inputs, targets in run.batches(iterations=1):
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets) * bad
        with pytest.raises(TrainingError, match=r"loss of worker 0 is not finite in iteration 0"):
            run.backward(loss)
        break
    assert torch.equal(weights(run), before)
    run.close()


def test_a_data_set_smaller_than_the_global_batch_is_refused():
    with pytest.raises(TrainingError, match=r"50 samples but one iteration takes 64 \(64\)"):
        make_run(sizes=(64,))


def test_a_wrong_number_of_workers_is_refused():
    with pytest.raises(TrainingError, match="names 2 workers but 1 take part"):
        make_run(sizes=(4, 4))


def test_a_worker_without_samples_runs_but_does_not_count(monkeypatch):
    run = make_run(mode="adapt")
    step = Step(Cursor(), (0, 8), Cursor(0, 8))  # as if another worker had all samples
    data = run._source.fetch(np.zeros(0, dtype=np.int64))
    batch = Batch(0, Plan(0, (8,)), step, 0, 0, data)
    assert len(data[0]) == 2, "batch norm needs two"
    run._now.begin(batch)
    monkeypatch.setattr(IterationInFlight, "sizes_due", (0,))
    monkeypatch.setattr(IterationInFlight, "spent_due", (0,))
    run.backward(nn.functional.cross_entropy(run.models[0](batch.data[0]), batch.data[1]))
    assert all(float(bucket._gradients.abs().sum()) == 0 for bucket in run._exchange.buckets)
    assert all(parameter.grad is None for parameter in run.models[0].parameters())
    run._now.end()
    run.close()


def test_a_second_step_for_one_batch_is_refused():
    run = make_run()
    with pytest.raises(TrainingError, match=r"step\(\) a second time for one run"):
        for inputs, targets in run.batches(iterations=2):
            run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
            run.optimizers[0].step()
            run.optimizers[0].step()
    assert run.iteration == 1
    run.close()


def test_a_slowed_down_worker_trains_after_a_pause_also_with_mode_off(monkeypatch):
    clock = {"now_s": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now_s"])
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    run = make_run(slowdown=2.0)
    for inputs, targets in run.batches(iterations=2):
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
        clock["now_s"] += 1.0
        run.backward(loss)
        run.optimizers[0].step()
        with run.paused():
            clock["now_s"] += 10.0
    run.close()
    assert slept == [1.0, 1.0], "as long again as it computed, pauses left out"


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


LENGTHS = [1 + (7 * number) % 10 for number in range(SAMPLES)]  # 275 tokens


def make_token_run(folder: Path | None = None, lengths: Any = LENGTHS, **changes: Any) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    session = Session(settings_for(folder, **{"unit": "tokens", "sizes": (40,)} | changes), "torch")
    return Run([model], [optimizer], make_data(), session, lengths=lengths)


def test_a_size_in_tokens_takes_every_sample_once(tmp_path):
    run = make_token_run(tmp_path, mode="observe")
    seen, tokens = [], []
    order = torch.utils.data.TensorDataset(*make_data().tensors).tensors[0].sum(1).tolist()
    for inputs, targets in run.batches(epochs=2):
        run.optimizers[0].zero_grad()
        numbers = [order.index(value) for value in inputs.sum(1).tolist()]
        seen += numbers
        tokens.append(sum(LENGTHS[number] for number in numbers))
        assert run.batch_size == 40
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets), weight=tokens[-1])
        run.optimizers[0].step()
    run.close()
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES))
    assert max(tokens) <= 40 and min(tokens) >= 18
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    assert (
        [w["samples"] for w in windows]
        == [w["units"] for w in windows]
        == [sum(tokens[i : i + 3]) for i in (1, 4, 7, 10)]
    )
    assert all(w["batch_size"] == 40 for w in windows)


def test_a_resume_in_tokens_goes_on_in_mid_epoch(tmp_path):
    whole, first = make_token_run(), make_token_run()
    train(whole, epochs=2)
    train(first, iterations=3)
    first.save(tmp_path / "x.pt")
    second = make_token_run(resume=tmp_path / "x.pt")
    train(second, epochs=2)
    assert torch.equal(weights(whole), weights(second))
    with pytest.raises(
        TrainingError, match=r"sizes of the checkpoint are in tokens, .* resume with batch: {unit: tokens}"
    ):
        make_token_run(resume=tmp_path / "x.pt", unit="padded_tokens")
    for run in (whole, first, second):
        run.close()


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        (None, "got none, expected 50 numbers"),
        (LENGTHS[1:], r"got shape \(49,\), expected 50 numbers"),
        ([0.5] * SAMPLES, "got float64 from 0.5 on, expected whole numbers from 0 on"),
        ([-1] * SAMPLES, "got int64 from -1 on"),
    ],
)
def test_sizes_in_tokens_need_the_tokens_of_every_sample(lengths, told):
    with pytest.raises(TrainingError, match=rf"batch.unit is tokens .* attach\(\) needs lengths=.*: {told}"):
        make_token_run(lengths=lengths)


def test_a_data_set_with_too_few_tokens_is_refused():
    with pytest.raises(TrainingError, match=r"the data set has 275 tokens but one iteration takes 300"):
        make_token_run(sizes=(300,))


def test_an_optimizer_of_frozen_layers_alone_belongs_to_no_training() -> None:
    make_run()  # stays open
    frozen = nn.Linear(2, 2).requires_grad_(False)
    for parameter in frozen.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = frozen.bias.clone()
    torch.optim.SGD(frozen.parameters(), lr=1.0).step()
    assert torch.equal(frozen.bias, before - 1)
