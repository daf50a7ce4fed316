"""The learning rate that a step of torch is made with."""

from __future__ import annotations

import math

import pytest
from torch import nn

from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import lines, make_run, train


def test_the_learning_rate_follows_the_fewer_samples_at_the_end_of_an_epoch(tmp_path):
    run = make_run(tmp_path, mode="adapt", lr_rule="sqrt")
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    train(run, iterations=8)
    assert used == pytest.approx([0.1] * 5 + [0.1 * math.sqrt(5 / 8)] * 2 + [0.1])


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
    assert used == pytest.approx([0.1, 0.1])


def test_the_learning_rate_is_for_the_first_sizes_of_the_cluster_file(tmp_path, monkeypatch):
    run = make_run(tmp_path, mode="adapt", lr_rule="sqrt", reference_batch=2)
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    train(run, iterations=1)
    assert used == [pytest.approx(0.2)]  # plan 0 has 8


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 2.25), ("sqrt", 1.5)])
def test_the_learning_rate_follows_the_plan_but_not_the_scheduler(tmp_path, monkeypatch, rule, factor):
    run = make_run(tmp_path, mode="adapt", lr_rule=rule)
    monkeypatch.setattr(run.training.session, "newest_plan", lambda: Plan(3, (18,)))
    used = []
    run.optimizers[0].register_step_pre_hook(lambda *_: used.append(run.optimizers[0].param_groups[0]["lr"]))
    train(run, iterations=2)
    assert used == pytest.approx([0.1, 0.1 * factor])
    assert run.optimizers[0].param_groups[0]["lr"] == 0.1
    run.close()
    (applied,) = [line for line in lines(tmp_path) if line["kind"] == "plan_applied"]
    assert (applied["version"], applied["iteration"], applied["lr_factor"]) == (3, 1, pytest.approx(factor))
