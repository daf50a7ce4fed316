"""A checkpoint of one number of workers goes on with another one: what stays, and what is shared anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import lines, make_data, make_run, open_run, settings_for, train, weights
from worker_hooks.run import Run
from worker_hooks.saved.checkpoint import save_checkpoint
from worker_hooks.session import Session
from worker_hooks.start import plan_for, resized

sizes = st.lists(st.integers(1, 300), min_size=1, max_size=6).map(tuple)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=6).filter(any).map(tuple), sizes)
def test_the_global_batch_stays_and_is_shared_in_proportion_to_the_first_sizes(saved, first_sizes):
    plan = plan_for(Plan(7, saved), first_sizes, None)
    assert (plan.version, plan.global_batch) == (7, sum(saved))
    if len(saved) == len(first_sizes):
        assert plan.batch_sizes == saved
        return
    for size, first in zip(plan.batch_sizes, first_sizes, strict=True):
        assert abs(size - sum(saved) * first / sum(first_sizes)) < 1


@given(sizes, st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=6))
def test_every_size_is_within_the_bounds_and_the_global_batch_is_as_near_as_they_allow(saved, drawn):
    bounds = [(low, low + more) for low, more in drawn]
    plan = plan_for(Plan(7, saved), (64,) * len(bounds), bounds)
    assert all(low <= size <= high for size, (low, high) in zip(plan.batch_sizes, bounds, strict=True))
    if len(saved) != len(bounds):
        lowest, highest = (sum(one[end] for one in bounds) for end in (0, 1))
        assert plan.global_batch == min(max(sum(saved), lowest), highest)


@pytest.mark.parametrize(
    ("saved", "first_sizes", "expected"),
    [
        ((40, 24), (64,), (32,)),
        ((40, 24), (2, 1, 1), (48, 24, 24)),
        ((40, 0, 24), (8, 8), (32, 32)),
        ((1, 0), (1,), (1,)),
    ],
)
def test_local_keeps_what_a_worker_has_on_average(saved: Any, first_sizes: Any, expected: Any) -> None:
    assert plan_for(Plan(7, saved), first_sizes, None, "local").batch_sizes == expected


@pytest.mark.parametrize(
    ("saved", "first_sizes", "expected"),
    [
        ((6, 6, 0, 0), (6, 6, 0, 0), (6, 6, 0, 0)),
        ((3, 3, 3, 3), (6, 6, 0, 0), (6, 6, 0, 0)),
        ((6, 6, 0, 0), (6, 6, 6, 6), (3, 3, 3, 3)),
        ((6, 6), (6, 6, 0), (6, 6, 0)),
        ((12, 0, 0), (6, 6, 0), (6, 6, 0)),
    ],
)
def test_workers_that_come_later_have_no_part_of_a_resumed_plan(saved: Any, first_sizes: Any, expected: Any) -> None:
    assert plan_for(Plan(7, saved), first_sizes, [(2, 64)] * len(first_sizes)).batch_sizes == expected


@pytest.mark.parametrize(
    ("saved", "now", "message"),
    [
        ((40, 24), (64,), "of 2 workers, this run has 1; its global batch stays 64: 40 [+] 24 becomes 64"),
        (
            (40, 24),
            (50,),
            "of 2 workers, this run has 1; its global batch of 64 becomes 50 by elastic.keep and the bounds: 40 [+] 24",
        ),
        ((40, 24), (32, 32), "batch sizes 40 [+] 24 of the checkpoint are outside of the bounds .* become 32 [+] 32"),
    ],
)
def test_people_are_told_what_becomes_of_the_sizes(saved: Any, now: Any, message: str) -> None:
    assert re.search(message, resized(Plan(3, saved), Plan(3, now)))


def saved_by_two(folder: Path, iterations: int = 10, **changes: Any) -> Path:
    """The checkpoint of a training whose global batch of 8 two workers shared, 5 and 3."""
    run = make_run(sizes=(8,), **changes)
    train(run, iterations=iterations)
    run.save(folder / "x.pt")
    run.close()
    return of_two(folder / "x.pt")


def of_two(path: Path) -> Path:
    state = torch.load(path)
    assert state["position"]["plan"]["batch_sizes"] == [8]
    state["position"]["plan"]["batch_sizes"] = [5, 3]
    torch.save(state, path)
    save_checkpoint(path, path.read_bytes())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_it_goes_on_as_if_the_workers_had_stayed(rule, tmp_path, caplog):
    whole = make_run(sizes=(8,), lr_rule=rule)
    train(whole, epochs=3)
    saved = saved_by_two(tmp_path, lr_rule=rule)
    run = make_run(tmp_path, sizes=(4,), lr_rule=rule, mode="adapt", resume=saved)  # the cluster file of one worker
    assert run.planned_sizes == (8,)
    assert "of 2 workers, this run has 1; its global batch stays 8: 5 + 3 becomes 8" in caplog.text
    train(run, epochs=3)
    assert run.iteration == whole.iteration
    assert torch.equal(weights(run), weights(whole)), "the learning rate is for the first sizes of the first run"
    run.close()
    told = [line["lr_batch"] for line in lines(tmp_path) if line["kind"] == "window"]
    assert told and set(told) == {8.0}


@pytest.mark.slow
def test_a_script_with_files_of_its_own_does_so_too():
    whole, first = make_run(sizes=(8,), lr_rule="linear"), make_run(sizes=(8,), lr_rule="linear")
    train(whole, epochs=2)
    train(first, iterations=10)
    state = first.state_dict()
    state["position"]["plan"]["batch_sizes"] = [1, 2, 5]
    second = make_run(sizes=(6,), lr_rule="linear")
    second.models[0].load_state_dict(first.models[0].state_dict())
    second.optimizers[0].load_state_dict(first.optimizers[0].state_dict())
    second.load_state_dict(state)
    train(second, epochs=2)
    assert torch.equal(weights(second), weights(whole))


def test_a_second_training_of_the_process_has_the_same_global_batch_and_learning_rate(tmp_path):
    saved = saved_by_two(tmp_path)
    for run_id in ("resumed", "resumed"):
        run = make_run(sizes=(4,), lr_rule="linear", resume=saved, run_id=run_id)
        assert run.planned_sizes == (8,)
        assert run.training.plans.rate.factor(8) == 1.0
        train(run, iterations=run.iteration + 1)
        run.close()


def test_a_checkpoint_of_an_earlier_version_takes_the_first_sizes_of_this_run(tmp_path):
    saved = saved_by_two(tmp_path)
    state = torch.load(saved)
    del state["position"]["reference_batch"], state["position"]["pass_batch"]
    torch.save(state, saved)
    save_checkpoint(saved, saved.read_bytes())
    run = make_run(sizes=(4,), lr_rule="linear", resume=saved)
    assert run.training.plans.rate.factor(8) == 2.0


def test_a_pass_that_drops_what_remains_is_as_long_as_before():
    def attached(size: int) -> Run:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        loader = DataLoader(make_data(), 8, drop_last=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return open_run([model], [optimizer], loader, Session(settings_for(sizes=(size,)), "torch"))

    first, alone, second = attached(8), attached(7), attached(7)
    assert (first.samples_per_pass, alone.samples_per_pass) == (48, 49)
    train(first, iterations=9)  # of 6 in a pass
    state = first.state_dict()
    state["position"]["plan"]["batch_sizes"] = [4, 4]
    second.load_state_dict(state)
    assert second.samples_per_pass == 48
    assert sum(map(len, train(second, epochs=2))) == 48 - 24


@pytest.mark.slow
def test_averages_of_the_weights_go_on_at_their_pace():
    def attached(size: int) -> Run:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer, session = torch.optim.SGD(model.parameters(), lr=0.1), Session(settings_for(sizes=(size,)), "torch")
        return open_run([model], [optimizer], make_data(), session, ema_decay=0.8)

    whole, first, second = attached(8), attached(8), attached(3)
    train(whole, iterations=6)
    train(first, iterations=3)
    second.models[0].load_state_dict(first.models[0].state_dict())
    state = first.state_dict()
    state["position"]["plan"]["batch_sizes"] = [6, 2]
    second.load_state_dict(state)
    train(second, iterations=6)
    found = []
    for run in (whole, second):
        with run.averaged():
            found.append(weights(run).clone())
    assert torch.equal(*found)


def test_with_keep_local_the_learning_rate_follows_what_becomes_of_the_global_batch(tmp_path):
    saved = saved_by_two(tmp_path)
    run = make_run(sizes=(4,), lr_rule="linear", resume=saved, keep="local")
    assert run.planned_sizes == (4,)
    assert run.training.plans.rate.factor(4) == 0.5
