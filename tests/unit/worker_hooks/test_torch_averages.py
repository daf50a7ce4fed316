"""Moving averages of the weights: the formula, what is averaged, what must not change by it, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dynamix_ps.errors import CheckpointError, TrainingError
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import lines, make_data, open_run, settings_for, train, weights
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.torch.averages import WeightAverages
from worker_hooks.torch.parameters import TorchParameters

DECAY = 0.8


def make_run(
    folder: Path | None = None,
    ema_decay: float | None = DECAY,
    model: nn.Module | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **changes: Any,
) -> Run:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    if folder is not None:
        (folder / "workers").mkdir(exist_ok=True)
    session = Session(settings_for(folder, **changes), "torch")
    return open_run([model], [optimizer(model.parameters(), lr=0.1)], make_data(), session, ema_decay=ema_decay)


def averages(run: Run) -> torch.Tensor:
    with run.averaged():
        return weights(run).clone()


def step(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    run.optimizers[0].zero_grad()
    run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
    run.optimizers[0].step()


def score(run: Run) -> Callable[..., Any]:
    return lambda x, y: {"loss": nn.functional.cross_entropy(run.models[0](x), y, reduction="sum")}


def by_the_formula(seen: list[tuple[int, torch.Tensor]], decay: float, reference_batch: int) -> torch.Tensor:
    """From (samples, weights) of every iteration: sample by sample, as the head of averages.py says."""
    per_sample = decay ** (1 / reference_batch)
    of_samples = [weights for samples, weights in seen for _ in range(samples)]
    parts = [per_sample ** (len(of_samples) - number) for number in range(1, len(of_samples) + 1)]
    return sum(part * one for part, one in zip(parts, of_samples, strict=True)) / sum(parts)


# -- the formula --


def test_the_average_is_over_samples_whatever_the_batch_sizes_are(monkeypatch):
    run = make_run(model=nn.Linear(4, 2), mode="adapt")
    plans = {0: None, 3: Plan(1, (3,)), 6: Plan(2, (16,))}
    monkeypatch.setattr(
        run.training.session, "newest_plan", lambda: plans[max(after for after in plans if after <= run.iteration)]
    )
    seen: list[tuple[int, torch.Tensor]] = []
    for inputs, targets in run.batches(epochs=2):
        step(run, inputs, targets)
        seen.append((len(inputs), weights(run).double()))
        expected = by_the_formula(seen, DECAY, 8)
        assert torch.allclose(averages(run).double(), expected, atol=1e-6)
    assert {samples for samples, _ in seen} >= {8, 3, 16}


def test_one_large_batch_counts_as_two_small_ones():
    model = nn.Linear(3, 2).double()
    found = []
    for sizes in ((16.0,), (8.0, 8.0)):
        kept = WeightAverages(known_of(model), DECAY, 8)
        for number in range(5):
            with torch.no_grad():
                model.weight.fill_(math.sin(number))
            for size in sizes:
                kept.stepped(size)
                kept.end_iteration()
        found.append(kept.state_dict()["means"]["weight"])
    assert torch.allclose(found[0], found[1], rtol=1e-12)


def known_of(*models: nn.Module) -> TorchParameters:
    known = TorchParameters(models, [torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)])
    known.look_up()
    return known


def test_with_the_first_sizes_it_becomes_torchs_own():
    model = nn.Linear(3, 2).double()
    kept, theirs = WeightAverages(known_of(model), 0.5, 8), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for number in range(60):  # what torch gives the first weights beyond their due is 2**-60 by then
        with torch.no_grad():
            model.weight.fill_(math.sin(number))
        kept.stepped(8.0)
        kept.end_iteration()
        theirs.update_parameters(model)
    assert torch.allclose(kept.state_dict()["means"]["weight"], theirs.module.weight, rtol=1e-12)


def test_it_starts_with_the_first_weights_that_training_made():
    run = make_run()
    before = weights(run).clone()
    assert torch.equal(averages(run), before), "there is nothing else yet"
    train(run, iterations=1)
    assert not torch.equal(weights(run), before)
    assert torch.equal(averages(run), weights(run))
    train(run, iterations=2)
    assert not torch.equal(averages(run), weights(run))


# -- what must not change --


def test_training_is_the_same_with_averages_and_evaluations_of_them():
    plain, averaged = make_run(ema_decay=None), make_run()
    for run in (plain, averaged):
        for inputs, targets in run.batches(epochs=2):
            step(run, inputs, targets)
            if run is averaged:
                run.evaluate(make_data(), score(run), averaged=True)
    assert torch.equal(weights(plain), weights(averaged))


def test_an_evaluation_of_averages_is_recorded_under_names_of_its_own(tmp_path):
    run = make_run(tmp_path)
    train(run, epochs=1)
    own = run.evaluate(make_data(), score(run))
    found = run.evaluate(make_data(), score(run), averaged=True, lower_is_better="loss")
    assert list(found) == ["loss"], "the script's own names"
    with run.averaged(), torch.no_grad():
        inputs, targets = make_data().tensors
        assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(run.models[0](inputs), targets)))
    assert found["loss"] != own["loss"]
    run.close()
    told = [line for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert [line["values"] for line in told] == [own, {"averaged_loss": found["loss"]}]
    assert [line["higher_is_better"] for line in told] == [{"loss": False}, {"averaged_loss": False}]


def test_the_averages_stay_as_they_are_whatever_happens_to_them_in_place():
    run = make_run(model=nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    train(run, epochs=1)
    before, own = (
        averages(run),
        {name: one.clone() for name, one in run.models[0].state_dict().items()},
    )
    with pytest.raises(ZeroDivisionError), run.averaged():
        run.models[0](make_data().tensors[0])  # in mode train: its running statistics move
        nn.init.zeros_(run.models[0][0].weight)
        raise ZeroDivisionError
    del own["1.num_batches_tracked"]
    assert all(torch.equal(one, run.models[0].state_dict()[name]) for name, one in own.items())
    assert torch.equal(averages(run), before)


@pytest.mark.parametrize("what", ["step", "save", "evaluate", "averaged", "backward", "batches"])
def test_what_needs_the_weights_themselves_is_refused_within_the_block(what, tmp_path):
    run = make_run()
    batches = run.batches(epochs=1)
    inputs, targets = next(batches)
    loss = nn.functional.cross_entropy(run.models[0](inputs), targets)
    if what == "step":
        run.backward(loss)
    doing = {
        "step": run.optimizers[0].step,
        "save": lambda: run.save(tmp_path / "x.pt"),
        "evaluate": lambda: run.evaluate(make_data(), score(run)),
        "averaged": lambda: run.averaged().__enter__(),
        "backward": lambda: run.backward(loss),
        "batches": lambda: next(batches),
    }
    with pytest.raises(TrainingError, match=r"inside of `with run.averaged\(\):`"), run.averaged():
        doing[what]()
    assert not (tmp_path / "x.pt").exists()


# -- which steps and weights count --


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True)], ids=["plain", "fused"]
)
def test_a_step_that_a_scaler_leaves_out_does_not_count(optimizer):
    run = make_run(optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    counted = []
    for number, (inputs, targets) in enumerate(run.batches(iterations=4)):
        run.optimizers[0].zero_grad()
        run.backward(scaler.scale(nn.functional.cross_entropy(run.models[0](inputs), targets)))
        if number == 1:
            run.models[0][0].weight.grad[0, 0] = math.inf
        scaler.step(run.optimizers[0])
        scaler.update()
        counted.append(run.adapter.averages.state_dict()["due"])
    assert counted == [8.0, 0.0, 8.0, 8.0]


def test_all_that_a_script_does_in_an_iteration_counts_at_its_end():
    """Two optimizers that step one after the other, then a projection: as a plain script that averages at the end."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6), nn.Linear(6, 2)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]
    session = Session(settings_for(), "torch")
    run = open_run([first, second], optimizers, make_data(), session, ema_decay=DECAY)
    seen = []
    for inputs, targets in run.batches(iterations=5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        run.backward(nn.functional.cross_entropy(second(first(inputs)), targets))
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            second.weight.clamp_(-0.2, 0.2)
        seen.append((8, torch.cat([first.weight.flatten(), second.weight.flatten()]).detach().double()))
    with run.averaged():
        found = torch.cat([first.weight.flatten(), second.weight.flatten()]).detach().double()
    assert torch.allclose(found, by_the_formula(seen, DECAY, 8), atol=1e-6)


def test_several_batches_of_one_step_count_as_one_batch():
    run = make_run()
    for number, (inputs, targets) in enumerate(run.batches(iterations=4)):
        loss = nn.functional.cross_entropy(run.models[0](inputs), targets) / 2
        if number % 2:
            run.backward(loss)
            run.optimizers[0].step()
            run.optimizers[0].zero_grad()
        else:
            loss.backward()
    run.adapter.averages.end_iteration()
    assert set(run.adapter.averages.state_dict()["samples"].values()) == {16.0}


def test_running_statistics_are_averaged_as_the_weights_are():
    run = make_run(model=nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    seen = []
    for inputs, targets in run.batches(iterations=5):
        step(run, inputs, targets)
        seen.append(
            (
                8,
                torch.cat([run.models[0][1].running_mean, run.models[0][1].running_var]).double(),
            )
        )
    with run.averaged():
        found = torch.cat([run.models[0][1].running_mean, run.models[0][1].running_var]).double()
        assert int(run.models[0][1].num_batches_tracked) == 5, "whole numbers are as they are"
    assert torch.allclose(found, by_the_formula(seen, DECAY, 8), atol=1e-6)


def test_halves_are_averaged_in_float32():
    model = nn.Linear(3, 2).bfloat16()
    kept = WeightAverages(known_of(model), 0.999, 8)
    for number in range(2000):
        with torch.no_grad():
            model.weight.fill_(1.0 if number < 1000 else 1.0 + 2**-7)  # one step of bfloat16 higher
        kept.stepped(8.0)
        kept.end_iteration()
    mean = float(kept.state_dict()["means"]["weight"][0, 0])
    assert mean == pytest.approx(1 + 2**-7 / (1 + 0.999**1000), abs=1e-5)
    with kept.in_place():
        assert model.weight.dtype == torch.bfloat16
        assert float(model.weight.detach()[0, 0]) == 1 + 2**-7


def test_averages_follow_what_is_trained():
    run = make_run(model=nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)))
    model, optimizer = run.models[0], run.optimizers[0]
    for number, (inputs, targets) in enumerate(run.batches(iterations=9)):
        step(run, inputs.to(model[0].weight.dtype), targets)
        if number == 2:
            model[0].requires_grad_(False)  # its average goes on to its weights
        if number == 4:
            model[1] = nn.Linear(6, 2)
            optimizer.param_groups[0]["params"][2:] = model[1].parameters()
            begun = model[1].weight.detach().clone()
        if number == 5:
            new = model[1].weight.detach().clone()
            with run.averaged():
                assert torch.equal(model[1].weight, new), "a new layer begins an average of its own"
        if number == 6:
            model.double()
    assert not torch.equal(begun, new)
    run.adapter.averages.end_iteration()
    state = run.adapter.averages.state_dict()
    assert state["samples"] == {"0.weight": 66.0, "0.bias": 66.0, "1.weight": 26.0, "1.bias": 26.0}
    assert all(mean.dtype == torch.float64 for mean in state["means"].values())
    assert len(run.adapter.averages._averages) == 4, "nothing is kept of the layer that is gone"
    own = model[0].weight.detach().clone()
    with run.averaged():
        difference = float((model[0].weight - own).abs().max())
    assert 0 < difference < DECAY**6


# -- checkpoints --


@pytest.mark.parametrize("where", ["in the loop", "after it"])
def test_a_resume_goes_on_with_the_same_averages_bit_for_bit(where, tmp_path):
    whole, first = make_run(), make_run()
    train(whole, epochs=2)
    if where == "after it":
        train(first, iterations=5)
        first.save(tmp_path / "x.pt")
    for inputs, targets in first.batches(iterations=5) if where == "in the loop" else ():
        step(first, inputs, targets)
        first.evaluate(make_data(), score(first), averaged=True)
        if first.iteration == 3:
            first.save(tmp_path / "x.pt")
    second = make_run(resume=tmp_path / "x.pt")
    train(second, epochs=2)
    assert torch.equal(averages(whole), averages(second))
    third, (state, place) = make_run(), (torch.load(tmp_path / "x.pt"), first.state_dict())
    third.models[0].load_state_dict(first.models[0].state_dict())
    third.optimizers[0].load_state_dict(first.optimizers[0].state_dict())
    third.load_state_dict(place)
    train(third, epochs=2)
    assert torch.equal(averages(whole), averages(third)), "with a file of the script's own"
    assert set(state["position"]["registered"]) == {"averaged weights"}


def test_a_checkpoint_without_averages_begins_them_anew_and_says_so(tmp_path):
    plain = make_run(ema_decay=None)
    train(plain, iterations=3)
    plain.save(tmp_path / "x.pt")
    run = make_run(tmp_path, resume=tmp_path / "x.pt")
    train(run, iterations=5)
    assert set(run.adapter.averages.state_dict()["samples"].values()) == {8.0}, "of the iteration after the resume"
    own = make_run(tmp_path)
    own.load_state_dict(plain.state_dict())
    for one in (plain, run, own):
        one.close()
    said = [line["detail"] for line in lines(tmp_path) if line["kind"] == "degraded"]
    assert said == 2 * ["it has no state of averaged weights, which begins anew"]


def test_averages_of_a_checkpoint_that_nobody_asks_for_are_told(tmp_path):
    first = make_run()
    train(first, iterations=2)
    first.save(tmp_path / "x.pt")
    plain = make_run(tmp_path, ema_decay=None, resume=tmp_path / "x.pt")
    train(plain, iterations=3)
    for run in (first, plain):
        run.close()
    said = [line["detail"] for line in lines(tmp_path) if line["kind"] == "degraded"]
    assert said == [
        "it has the state of averaged weights, which neither run.register() nor ema_decay asks for; it is not used"
    ]


def test_averages_of_another_model_are_refused():
    kept = WeightAverages(known_of(nn.Linear(3, 2)), DECAY, 8)
    kept.stepped(8.0)
    kept.end_iteration()
    state = kept.state_dict()
    other = WeightAverages(known_of(nn.Linear(4, 2)), DECAY, 8)
    with pytest.raises(CheckpointError, match=r"averages.means.weight: got shape \(2, 3\), expected \(2, 4\)"):
        other.load_state_dict(state)
    other = WeightAverages(known_of(nn.Linear(3, 2), nn.Linear(3, 2)), DECAY, 8)
    with pytest.raises(CheckpointError, match=r"averages.means has 'weight', which the model lacks"):
        other.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"averages.samples: has no 'weight'"):
        kept.load_state_dict(state | {"samples": {}})


# -- refused --


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(TrainingError, match=r"attach\(ema_decay=.*\): expected a number above 0 and below 1"):
        make_run(ema_decay=decay)


def test_averages_that_nobody_keeps_are_refused():
    run = make_run(ema_decay=None)
    for doing in (lambda: run.evaluate(make_data(), score(run), averaged=True), run.averaged().__enter__):
        with pytest.raises(TrainingError, match=r"no weights are averaged; attach\(..., ema_decay=0.999\)"):
            doing()
