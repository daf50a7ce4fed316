"""The torch hook in one process (comm: local), as a script sees it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import SAMPLES, make_data, make_run, open_run, settings_for, train, weights
from worker_hooks.iteration.in_flight import IterationInFlight
from worker_hooks.loading.batches import Batch
from worker_hooks.run import Run
from worker_hooks.sampling.sampler import Cursor, Step
from worker_hooks.session import Session
from worker_hooks.torch.join import attach


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


def test_clipping_after_synchronize_sees_the_global_gradient():
    run = make_run()
    for inputs, targets in run.batches(iterations=1):
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.synchronize()
        norm = nn.utils.clip_grad_norm_(run.models[0].parameters(), 1e-3)
        assert norm > 1e-3
        run.optimizers[0].step()
    assert sum(float((p.grad**2).sum()) for p in run.models[0].parameters()) == pytest.approx(1e-6, rel=1e-2)


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


def test_a_batch_that_the_script_leaves_the_loop_with_comes_again():
    run = make_run()
    left = next(iter(run.batches(epochs=1)))
    seen = train(run, epochs=1)
    assert torch.equal(seen[0], left[0])
    assert sum(map(len, seen)) == SAMPLES


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
    assert run.training.now.parts[0].samples == sum(map(len, seen))
    assert run.training.now.loss == pytest.approx(sum(losses))


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


def test_hooks_of_a_script_are_its_own_again_after_the_training():
    run, seen = make_run(), []
    parameter = run.models[0][2].weight
    before, after = (lambda gradient: seen.append("before")), (lambda gradient: seen.append("after"))
    parameter.register_hook(before)
    train(run, iterations=1)
    handle = parameter.register_post_accumulate_grad_hook(after)
    train(run, iterations=1)
    handle.remove()
    train(run, iterations=1)
    run.close()
    assert seen == ["before", "before", "after", "before"]
    assert list(parameter._backward_hooks.values()) == [before]


def test_a_wrapper_that_is_no_optimizer_is_refused_and_what_is_in_it_named():
    class Warmup:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

    model = nn.Linear(4, 2)
    wrapper = Warmup(torch.optim.SGD(model.parameters(), lr=0.1))
    expected = r"attach\(\) got a Warmup as optimizer, .*give attach\(\) the one inside of it, its attribute 'inner'"
    with pytest.raises(TrainingError, match=expected):
        attach(model, wrapper, make_data())
    with pytest.raises(TrainingError, match=r"attach\(\) got a Linear as optimizer, .*one, or a list of them"):
        attach(model, [model], make_data())


def test_wrappers_that_average_gradients_themselves_are_refused():
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 2)

    model = DistributedDataParallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match="wrapped in DistributedDataParallel"):
        open_run([model], [optimizer], make_data(), Session(settings_for(), "torch"))


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


def test_a_data_set_smaller_than_the_global_batch_is_refused():
    with pytest.raises(TrainingError, match=r"50 samples but one iteration takes 64 \(64\)"):
        make_run(sizes=(64,))


def test_a_wrong_number_of_workers_is_refused():
    with pytest.raises(TrainingError, match="names 2 workers but 1 take part"):
        make_run(sizes=(4, 4))


def test_a_worker_without_samples_runs_but_does_not_count(monkeypatch):
    run = make_run(mode="adapt")
    step = Step(Cursor(), (0, 8), Cursor(0, 8))  # as if another worker had all samples
    data = run.training.data.source.fetch(np.zeros(0, dtype=np.int64))
    batch = Batch(0, Plan(0, (8,)), step, 0, 0, data)
    assert len(data[0]) == 2, "batch norm needs two"
    run.training.now.begin(batch)
    monkeypatch.setattr(IterationInFlight, "sizes_due", (0,))
    monkeypatch.setattr(IterationInFlight, "spent_due", (0,))
    run.backward(nn.functional.cross_entropy(run.models[0](batch.data[0]), batch.data[1]))
    assert all(float(bucket._places.gradients.abs().sum()) == 0 for bucket in run.training.sums.exchange.buckets)
    assert all(parameter.grad is None for parameter in run.models[0].parameters())
    run.training.now.end()


def test_a_second_step_for_one_batch_is_refused():
    run = make_run()
    with pytest.raises(TrainingError, match=r"step\(\) a second time for one run"):
        for inputs, targets in run.batches(iterations=2):
            run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
            run.optimizers[0].step()
            run.optimizers[0].step()
    assert run.iteration == 1


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
    assert slept == [1.0, 1.0], "as long again as it computed, pauses left out"


def test_an_optimizer_of_frozen_layers_alone_belongs_to_no_training() -> None:
    make_run()  # stays open
    frozen = nn.Linear(2, 2).requires_grad_(False)
    for parameter in frozen.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = frozen.bias.clone()
    torch.optim.SGD(frozen.parameters(), lr=1.0).step()
    assert torch.equal(frozen.bias, before - 1)
