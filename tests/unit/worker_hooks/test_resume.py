"""Saving a torch training and going on from there, in one process (comm: local)."""

from __future__ import annotations

import io
import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dynamix_ps.errors import CheckpointError, TrainingError
from tests.unit.worker_hooks.local_run import lines, make_data, make_run, open_run, settings_for, train, weights
from worker_hooks.run import Run
from worker_hooks.saved.checkpoint import load_checkpoint, save_checkpoint
from worker_hooks.session import Session


@pytest.mark.slow
def test_a_checkpoint_goes_on_exactly(tmp_path):
    whole = make_run()
    train(whole, epochs=3)
    first = make_run()
    train(first, iterations=10)
    first.training.plans.rate.noise, first.training.observer.progress.largest_lr = (3.0, 1.0), 0.8
    first.save(tmp_path / "at-10.pt")
    second = make_run(resume=tmp_path / "at-10.pt")
    assert (second.iteration, second.epoch) == (10, 1)
    assert (second.training.plans.rate.noise, second.training.observer.progress.largest_lr) == ((3.0, 1.0), 0.8)
    train(second, epochs=3)
    assert torch.equal(weights(whole), weights(second))


def test_nothing_is_left_to_do_after_a_resume_at_the_end(tmp_path):
    first = make_run()
    train(first, iterations=2)
    first.save(tmp_path / "end.pt")
    first.close()
    second = make_run(resume=tmp_path / "end.pt")
    assert train(second, iterations=2) == []


def damaged(path: Path, **changes: Any) -> Path:
    """The same checkpoint with some fields changed, and a right checksum."""
    state = torch.load(path) | changes
    torch.save(state, path)
    save_checkpoint(path, path.read_bytes())
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run = make_run()
    train(run, iterations=2)
    run.save(tmp_path / "x.pt")
    run.close()
    return tmp_path / "x.pt"


def test_unusable_checkpoints_are_refused(saved):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        make_run(resume=saved.with_name("none.pt"))
    with pytest.raises(CheckpointError, match="format 99, expected 2"):
        make_run(resume=damaged(saved, format=99))
    with pytest.raises(CheckpointError, match="checkpoint: has the unknown field 'more'"):
        make_run(resume=damaged(saved, format=2, more=1))
    save_checkpoint(saved, b"PK\x03\x04 torn")
    with pytest.raises(CheckpointError, match=r"x.pt: not a complete checkpoint of torch"):
        make_run(resume=saved)


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes(saved):
    state = torch.load(saved)["models"][0]
    state["0.weight"] += 1
    wider = state | {"2.weight": torch.zeros(2, 7)}
    for changed, message in (
        (wider, r"models\[0\].2.weight: got float32 of shape \(2, 7\), expected float32 of shape \(2, 6\)"),
        (state | {"2.weight": state["2.weight"].double()}, r"models\[0\].2.weight: got float64 of shape"),
        (state | {"3.weight": torch.zeros(2)}, r"models\[0\] has '3.weight', which the model lacks"),
        ({"0.weight": state["0.weight"]}, r"models\[0\] has no '0.bias'"),
    ):
        run = make_run()
        before = weights(run)
        with pytest.raises(CheckpointError, match=f"not of this model: {message}"):
            run.adapter.state.restore(io.BytesIO(damaged_bytes(saved, models=[changed])))
        assert torch.equal(weights(run), before)
        run.close()


def damaged_bytes(path: Path, **changes: Any) -> bytes:
    return load_checkpoint(damaged(path, **changes))


def test_a_checkpoint_of_another_optimizer_is_refused(saved):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 2))
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(CheckpointError, match=r"optimizers\[0\].kind: got 'SGD', expected 'Adam'"):
        open_run([model], [adam], make_data(), Session(settings_for(resume=saved), "torch"))
    state = torch.load(saved)["optimizers"]
    del state[0]["state"]["param_groups"][0]["momentum"]
    with pytest.raises(CheckpointError, match=r"optimizers\[0\].param_groups\[0\] has no 'momentum'"):
        make_run(resume=damaged(saved, optimizers=state))


def test_a_plan_outside_of_todays_bounds_is_moved_into_them_and_says_so(saved, caplog):
    run = make_run(resume=saved, bounds=((1, 6),))
    assert run.batch_size == 6
    assert (
        "the batch sizes 8 of the checkpoint are outside of the bounds in the cluster file; they become 6"
        in caplog.text
    )
    assert [len(batch) for batch in train(run, iterations=4)] == [6, 6]


def test_other_data_in_the_middle_of_an_epoch_is_refused(saved):
    position = torch.load(saved)["position"]
    run = make_run()
    with pytest.raises(TrainingError, match="at sample 16 of a data set of 60 samples, this one has 50"):
        run.load_state_dict({"format": 2, "position": position | {"epoch_samples": 60}})
    run.load_state_dict(
        {"format": 2, "position": position | {"epoch_samples": 60, "cursor": {"epoch": 1, "position": 0}}}
    )
    assert run.epoch == 1


def test_the_seed_of_the_checkpoint_goes_on(saved, caplog):
    run = make_run(resume=saved, seed=6)
    assert run.training.data.stream.seed == 5
    assert "seed 6 is not used, the checkpoint's is: 5" in caplog.text


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before_it(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    run = make_run(tmp_path, checkpoint_every=2)
    train(run, iterations=6)
    run.close()
    newest = tmp_path / "checkpoints" / "last.pt"
    newest.write_bytes(newest.read_bytes()[:100])
    second = make_run(tmp_path, resume=newest)
    assert second.iteration == 4
    second.close()
    (said,) = [line["detail"] for line in lines(tmp_path) if line["kind"] == "degraded"]
    assert f"goes on from the one before it, {newest.with_name('last.1.pt')}" in said


def test_a_second_training_of_a_process_saves_under_another_name(tmp_path):
    for _ in range(2):
        run = make_run(tmp_path)
        train(run, iterations=1)
        run.save()
        run.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["last.pt", "training-2-last.pt"]


# -- checkpoints of the script's own --


def test_the_place_comes_back_in_a_checkpoint_of_the_scripts_own(tmp_path):
    whole, first, second = make_run(), make_run(), make_run(seed=17)
    train(whole, epochs=4)
    train(first, epochs=2)
    torch.save(
        {
            "run": first.state_dict(),
            "m": first.models[0].state_dict(),
            "o": first.optimizers[0].state_dict(),
        },
        tmp_path / "x",
    )
    own = torch.load(tmp_path / "x")
    second.models[0].load_state_dict(own["m"])
    second.optimizers[0].load_state_dict(own["o"])
    second.load_state_dict(own["run"])
    assert (second.iteration, second.epoch) == (14, 2)
    train(second, epochs=4)
    assert second.iteration == whole.iteration == 28
    assert torch.equal(weights(whole), weights(second))


def test_a_place_comes_before_the_first_batch():
    run = make_run()
    state = run.state_dict()
    train(run, iterations=1)
    with pytest.raises(TrainingError, match=r"load_state_dict\(\) after 1 iterations; call it after attach\(\)"):
        run.load_state_dict(state)


def test_a_state_without_a_format_is_refused():
    run = make_run()
    state = run.state_dict()
    with pytest.raises(CheckpointError, match="state of the run: has no 'format'"):
        run.load_state_dict({"position": state["position"]})


# -- registered objects --


def train_with_scheduler(run: Run, **limits: int) -> None:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizers[0], max_lr=0.5, total_steps=30)
    run.register(scheduler=scheduler)
    for inputs, targets in run.batches(**limits):
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        scheduler.step()


def test_a_scheduler_goes_on_exactly_after_an_automatic_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    whole = make_run()
    train_with_scheduler(whole, epochs=4)
    first = make_run(tmp_path, checkpoint_every=5)
    train_with_scheduler(first, iterations=13)
    second = make_run(resume=tmp_path / "checkpoints" / "last.pt")
    assert second.iteration == 10
    train_with_scheduler(second, epochs=4)
    assert torch.equal(weights(whole), weights(second))


def test_registered_objects_are_part_of_the_runs_state_in_either_order():
    first = make_run()
    train_with_scheduler(first, iterations=10)
    rate = first.optimizers[0].param_groups[0]["lr"]
    for register_first in (True, False):
        second = make_run()
        second.optimizers[0].load_state_dict(first.optimizers[0].state_dict())
        if not register_first:
            second.load_state_dict(first.state_dict())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(second.optimizers[0], max_lr=0.5, total_steps=30)
        second.register(scheduler=scheduler)
        if register_first:
            second.optimizers[0].load_state_dict(first.optimizers[0].state_dict())
            second.load_state_dict(first.state_dict())
        assert scheduler.last_epoch == 10
        assert second.optimizers[0].param_groups[0]["lr"] == rate
        second.close()


class NoState:
    pass


class OfAnotherKind:
    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("x")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("step")


def test_numbers_of_numpy_come_back_as_those_of_python(tmp_path):
    first = make_run()
    optimizer = first.optimizers[0]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 40))
    first.register(scheduler=scheduler)
    train(first, iterations=2)
    scheduler.step()
    rate = optimizer.param_groups[0]["lr"]
    assert type(rate) is np.float64
    first.save(tmp_path / "x.pt")
    state = io.BytesIO()
    torch.save(first.state_dict(), state)
    state.seek(0)
    torch.load(state, weights_only=True)
    second = make_run(resume=tmp_path / "x.pt")
    assert second.optimizers[0].param_groups[0]["lr"] == rate


def test_a_state_that_cannot_come_back_is_refused_with_its_key(tmp_path):
    run = make_run()
    train(run, iterations=2)
    run.optimizers[0].param_groups[0]["note"] = {"by": [1, object()]}
    expected = r"the state of optimizer 0\['param_groups'\]\[0\]\['note'\]\['by'\]\[1\] is of type object, which"
    with pytest.raises(CheckpointError, match=expected):
        run.save(tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


def test_what_cannot_be_registered_is_refused(tmp_path):
    run = make_run()
    with pytest.raises(
        TrainingError, match=r"run.register\(thing=...\) got NoState, expected an object with state_dict"
    ):
        run.register(thing=NoState())
    with pytest.raises(TrainingError, match=r"run.register\(thing=...\): no checkpoint can hold its state"):
        run.register(thing=OfAnotherKind())
    run.register(scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(TrainingError, match=r"run.register\(scaler=...\): the name is taken"):
        run.register(scaler=torch.amp.GradScaler("cpu"))


@pytest.mark.slow
def test_a_state_that_its_object_refuses_or_nobody_takes_is_told(tmp_path):
    first = make_run()
    first.register(scaler=torch.amp.GradScaler("cpu"), average=torch.optim.swa_utils.AveragedModel(first.models[0]))
    train(first, iterations=2)
    first.save(tmp_path / "x.pt")
    second = make_run(tmp_path, resume=tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"registered object average: AveragedModel.load_state_dict\(\) refuses"):
        second.register(average=torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1)))
    second.register(more=torch.amp.GradScaler("cpu"))
    train(second, iterations=3)
    for run in (first, second):
        run.close()
    said = [line["detail"] for line in lines(tmp_path) if line["kind"] == "degraded"]
    assert said == [
        "it has no state of more, which begins anew",
        "it has the state of scaler, which neither run.register() nor ema_decay asks for; it is not used",
    ]


# -- how much is done --


def test_progress_goes_from_0_to_1_also_over_a_resume(tmp_path):
    first = make_run()
    assert first.progress == 0.0
    seen = []
    for inputs, targets in first.batches(iterations=8):
        first.optimizers[0].zero_grad()
        first.backward(nn.functional.cross_entropy(first.models[0](inputs), targets))
        first.optimizers[0].step()
        seen.append(first.progress)
        if first.iteration == 4:
            first.save(tmp_path / "x.pt")
    assert seen == [number / 8 for number in range(1, 9)]
    second = make_run(resume=tmp_path / "x.pt")
    assert second.progress == 0.5
    train(second, iterations=8)
    assert second.progress == 1.0
    train(second, iterations=10)
    with pytest.raises(TrainingError, match=r"run.progress is not known, because run.batches\(\) or run.epochs\(\)"):
        _ = second.progress
    assert second.state_dict()["position"]["progress"] is None


# -- a save that fails --


def test_a_full_disk_degrades_once_and_recovers(tmp_path, caplog):
    (tmp_path / "checkpoints").mkdir()
    run = make_run(tmp_path, checkpoint_every=1)
    train(run, iterations=1)
    good = (tmp_path / "checkpoints" / "last.pt").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # writing more fails, as on a full disk
    try:
        train(run, iterations=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "checkpoints" / "last.pt").read_bytes() == good
    run.save("/proc/none/x.pt")
    train(run, iterations=4)
    run.close()
    assert torch.load(tmp_path / "checkpoints" / "last.pt")["position"]["iteration"] == 4
    told = [line for line in lines(tmp_path) if line["kind"] in ("degraded", "recovered")]
    assert [line["kind"] for line in told] == ["degraded", "recovered"]
    assert "checkpoints/last.pt was not saved: File too large; training goes on" in told[0]["detail"]
    assert "was not saved" in caplog.text
    assert not math.isnan(float(weights(run).sum()))
