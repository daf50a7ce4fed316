"""`lr: guard` in torch: weights come back, and the learning rate is halved."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import lines, make_run, train, weights
from worker_hooks.torch.averages import AVERAGES, WeightAverages
from worker_hooks.torch.join import check_rates
from worker_hooks.torch.state.state_copy import copy_state

NAN = math.nan


_numbers = itertools.count()


def guarded_run(folder: Path | None = None, **changes: Any) -> Any:
    """A run whose process has had no other training, unless `run_id` says so."""
    return make_run(folder, **{"mode": "adapt", "lr": "guard", "run_id": f"guarded-{next(_numbers)}", **changes})


def used_rates(run: Any) -> list[float]:
    used: list[float] = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    return used


def state_of(run: Any) -> dict[str, Any]:
    return copy.deepcopy({"model": run.models[0].state_dict(), "optimizer": run.optimizers[0].state_dict()["state"]})


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(torch.equal(one, other)) if isinstance(one, torch.Tensor) else bool(one == other)


def train_with_broken_losses(run: Any, iterations: int, broken: set[int]) -> list[Any]:
    """The usual loop; in `broken` iterations the loss is NaN. Returns the state before every iteration, and after."""
    states = []
    for inputs, targets in run.batches(iterations=iterations):
        states.append(state_of(run))
        run.optimizers[0].zero_grad()
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
        run.backward(loss * NAN if run.iteration in broken else loss)
        run.optimizers[0].step()
    return [*states, state_of(run)]


def test_the_rate_is_halved_beside_the_rule_and_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = guarded_run(tmp_path, lr_rule="sqrt", window=2)
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizers[0], step_size=3, gamma=0.1)
    monkeypatch.setattr(run.training.session, "newest_plan", lambda: Plan(3, (2,)))
    used = used_rates(run)
    for inputs, targets in run.batches(iterations=5):
        run.optimizers[0].zero_grad()
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
        run.backward(loss * NAN if run.iteration == 1 else loss)
        run.optimizers[0].step()
        scheduler.step()
    run.close()
    assert used == pytest.approx([0.1, 0.1 * 0.5 * 0.5, 0.1 * 0.5 * 0.5, 0.01 * 0.5 * 0.5, 0.01 * 0.5 * 0.5])
    window = [line for line in lines(tmp_path) if line["kind"] == "window"][-1]
    assert (window["lr_factor"], window["lr_guard"]) == pytest.approx((0.25, 0.5))


def test_all_parameter_groups_and_optimizers_follow() -> None:
    run = guarded_run()
    first, last = run.models[0][0], run.models[0][2]
    run.close()
    model = nn.Sequential(first, run.models[0][1], last)
    one = torch.optim.Adam([{"params": first.weight, "lr": 0.01}, {"params": first.bias}], lr=0.02)
    other = torch.optim.SGD(last.parameters(), lr=0.04)
    from tests.unit.worker_hooks.local_run import make_data, open_run, settings_for
    from worker_hooks.session import Session

    run = open_run([model], [one, other], make_data(), Session(settings_for(mode="adapt", lr="guard"), "torch"))
    used: list[list[float]] = []
    for optimizer in (one, other):
        optimizer.register_step_pre_hook(lambda opt, *_: used.append([group["lr"] for group in opt.param_groups]))
    for inputs, targets in run.batches(iterations=3):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        run.backward(loss * NAN if run.iteration == 1 else loss)
        one.step()
        other.step()
    assert used == [[0.01, 0.02], [0.04], *2 * [[0.005, 0.01], [0.02]]]


def test_a_checkpoint_keeps_what_the_guard_has_left(tmp_path: Path) -> None:
    run = guarded_run()
    train_with_broken_losses(run, 5, {3})
    run.save(tmp_path / "x.pt")
    run.close()
    resumed = guarded_run(resume=tmp_path / "x.pt")
    used = used_rates(resumed)
    train(resumed, iterations=6)
    resumed.close()
    assert used == [pytest.approx(0.1 * 0.5)]

    follows = make_run(mode="adapt", lr="follow", resume=tmp_path / "x.pt")
    used = used_rates(follows)
    train(follows, iterations=6)
    follows.close()
    assert used == [0.1]


def test_a_loss_that_is_not_finite_takes_weights_and_optimizer_back(tmp_path: Path) -> None:
    run = guarded_run(tmp_path)
    used = used_rates(run)
    states = train_with_broken_losses(run, 60, {45})
    run.close()
    assert same(states[46], states[40]), "the state of the newest copy, though the script made its step"
    assert not same(states[45], states[40])
    assert used == [0.1] * 45 + [0.05] * 15
    (told,) = [line for line in lines(tmp_path) if line["kind"] == "rollback"]
    assert (told["iteration"], told["back_to"], told["lr_guard"]) == (45, 40, 0.5)
    assert told["reason"] == "the loss of worker 0 is not finite"
    windows = [line for line in lines(tmp_path) if line["kind"] == "window"]
    inside = [w["first_iteration"] <= 45 < w["first_iteration"] + w["iterations"] for w in windows]
    assert [w["flagged"] for w in windows] == inside and any(inside)
    assert all(
        w["loss"] is not None and math.isfinite(w["loss"])
        for w, is_in in zip(windows, inside, strict=True)
        if not is_in
    )


def test_samples_and_schedulers_go_on(tmp_path: Path) -> None:
    plain, guarded = make_run(mode="adapt", run_id="samples-go-on"), guarded_run()
    seen = []
    for run, broken in ((plain, set[int]()), (guarded, {9})):
        scheduler = torch.optim.lr_scheduler.StepLR(run.optimizers[0], step_size=5, gamma=0.5)
        batches = []
        for inputs, targets in run.batches(iterations=14):
            batches.append(inputs)
            run.optimizers[0].zero_grad()
            loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
            run.backward(loss * NAN if run.iteration in broken else loss)
            run.optimizers[0].step()
            scheduler.step()
        seen.append((torch.cat(batches), run.optimizers[0].param_groups[0]["lr"], run.epoch, run.iteration))
        run.close()
    assert torch.equal(seen[0][0], seen[1][0])
    assert seen[0][1:] == seen[1][1:]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam])
def test_every_optimizer_comes_back_as_often_as_wanted(kind: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), lr=0.01)
    group = optimizer.param_groups[0]

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()

    steps(3)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])
    put_back = copy_state([model], [optimizer])
    for _ in range(2):
        steps(4)
        group["lr"] = 0.02
        assert not same(model.state_dict(), before[0])
        put_back()
        assert same(model.state_dict(), before[0])
        assert same(optimizer.state_dict()["state"], before[1])
        assert optimizer.param_groups[0] is group and group["lr"] == 0.02


def test_a_gradient_that_is_not_finite_is_no_step(tmp_path: Path) -> None:
    run = guarded_run(tmp_path)
    for inputs, targets in run.batches(iterations=12):
        run.optimizers[0].zero_grad()
        logits = run.models[0](inputs)
        if run.iteration == 7:
            logits.register_hook(lambda gradient: gradient * math.inf)
        run.backward(nn.functional.cross_entropy(logits, targets))
        if run.iteration == 7:
            assert all(not p.grad.any() for p in run.models[0].parameters())
        run.optimizers[0].step()
    run.close()
    assert torch.isfinite(weights(run)).all()
    (told,) = [line for line in lines(tmp_path) if line["kind"] == "rollback"]
    assert (told["iteration"], told["reason"]) == (7, "the gradient is not finite")


@pytest.mark.parametrize("mode", ["adapt", "off"])
def test_what_the_script_saves_after_a_rollback_is_the_state_that_came_back(tmp_path: Path, mode: str) -> None:
    run = guarded_run(mode=mode)
    first = None
    for inputs, targets in run.batches(iterations=5):
        first = state_of(run) if first is None else first
        run.optimizers[0].zero_grad()
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
        run.backward(loss * NAN if run.iteration == 3 else loss)
        assert run.iteration != 3 or same(state_of(run)["model"], first["model"]), "before the step already"
        run.optimizers[0].step()
        if run.iteration == 4:
            run.save(tmp_path / "x.pt")
    run.close()
    saved = torch.load(tmp_path / "x.pt", weights_only=True)
    assert first is not None and same(saved["models"][0], first["model"])
    assert saved["optimizers"][0]["state"]["state"] == {}, "no step had been made"


def test_averages_that_the_script_registers_come_back_too(tmp_path: Path) -> None:
    run = guarded_run()
    average = torch.optim.swa_utils.AveragedModel(run.models[0])
    run.register(average=average)
    for inputs, targets in run.batches(iterations=6):
        run.optimizers[0].zero_grad()
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
        run.backward(loss * NAN if run.iteration == 4 else loss)
        run.optimizers[0].step()
        if run.iteration == 5:
            assert int(average.n_averaged) == 0
        average.update_parameters(run.models[0])


def test_our_own_averages_come_back_too() -> None:
    run = guarded_run()
    run.adapter.averages = WeightAverages(run.adapter.parameters, 0.9, 8)
    run.register(**{AVERAGES: run.adapter.averages})
    means = []
    for inputs, targets in run.batches(iterations=60):
        means.append(copy.deepcopy(run.adapter.averages.state_dict()["means"]))
        run.optimizers[0].zero_grad()
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
        run.backward(loss * NAN if run.iteration == 45 else loss)
        run.optimizers[0].step()
    assert same(means[46], means[40]) and not same(means[45], means[40])


def test_three_times_and_then_it_ends_as_it_would_without_guard() -> None:
    run = guarded_run()
    with pytest.raises(TrainingError, match="the loss of worker 0 is not finite in iteration 8"):
        train_with_broken_losses(run, 20, {2, 4, 6, 8})


def test_without_guard_a_loss_that_is_not_finite_ends_training_at_once() -> None:
    for changes in ({"lr": "follow"}, {"mode": "observe"}):
        run = guarded_run(**changes)
        with pytest.raises(TrainingError, match="is not finite in iteration 2"):
            train_with_broken_losses(run, 20, {2})
        run.close()


def test_a_gradient_scaler_looks_for_gradients_that_are_not_finite_itself(tmp_path: Path) -> None:
    run = guarded_run(tmp_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for inputs, targets in run.batches(iterations=4):
        run.optimizers[0].zero_grad()
        logits = run.models[0](inputs)
        if run.iteration == 2:
            logits.register_hook(lambda gradient: gradient * math.inf)
        run.backward(scaler.scale(nn.functional.cross_entropy(logits, targets)))
        scaler.step(run.optimizers[0])
        scaler.update()
    run.close()
    assert scaler.get_scale() == 2.0
    assert not [line for line in lines(tmp_path) if line["kind"] == "rollback"]


def test_it_needs_a_learning_rate_in_every_group() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(TrainingError, match="SGD has a parameter group whose `lr` is no number"):
        check_rates([optimizer])
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    check_rates([optimizer])
