"""Clock, records and decisions of a rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import dynamix_ps.torch as dynamix
from dynamix_ps.report.summary import read_told, state_of
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.recorded import read_run
from dynamix_ps.sim.scenario.load import Scenario
from tests.unit.rehearsal.conftest import Rehearse, lines_of
from tests.unit.rehearsal.test_weights import make_data, plain_model

WORKERS = (
    {"fixed_s": 0.01, "per_sample_s": 1e-3},
    {"fixed_s": 0.01, "per_sample_s": 1e-3},
    {"fixed_s": 0.01, "per_sample_s": 4e-3},
)


def uneven(**changes: Any) -> Scenario:
    given = {"name": "uneven", "workers": WORKERS, "jitter": 0.0, "model_bytes": 1e3}
    return Scenario.model_validate(given | changes)


def train(epochs: int = 8) -> Any:
    torch.manual_seed(0)
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = dynamix.attach(model, optimizer, make_data())
    for _ in run.epochs(epochs):
        for inputs, targets in run.batches():
            optimizer.zero_grad()
            outputs = model(inputs)
            run.backward(cross_entropy(outputs, targets), correct=(outputs.argmax(1) == targets).sum())
            optimizer.step()
        run.evaluate(make_data(), lambda x, y: {"accuracy": (model(x).argmax(1) == y).sum()})
    run.close()
    return model


@pytest.mark.slow
def test_time_is_that_of_the_slowest_worker_and_evaluations_take_none(rehearse: Rehearse):
    folder = rehearse(policy={"name": "static"}, scenario=uneven())
    train(epochs=2)
    window = lines_of(folder, 2, "window")[-1]
    each_s = 0.01 + 8 * 4e-3
    assert window["compute_s"] == pytest.approx(window["iterations"] * each_s, rel=1e-4)
    assert window["duration_s"] == pytest.approx(window["iterations"] * each_s, rel=0.1)
    quick = lines_of(folder, 0, "window")[-1]
    assert quick["wait_s"] == pytest.approx(window["compute_s"] - quick["compute_s"], rel=1e-4)
    assert quick["wait_s"] + quick["push_pull_s"] + quick["compute_s"] == pytest.approx(quick["duration_s"])
    first, last = lines_of(folder, 0, "evaluation")
    assert first["trained_s"] == pytest.approx(9 * each_s, rel=0.1)
    assert last["trained_s"] == pytest.approx(2 * first["trained_s"], rel=0.05)


def test_a_policy_sees_what_it_would_see_in_a_cluster_and_its_plans_take_effect(rehearse: Rehearse):
    folder = rehearse(policy={"name": "proportional"}, scenario=uneven(), batch={"min": 1, "max": 64})
    train()
    applied = lines_of(folder, 0, "plan_applied")
    sizes = applied[-1]["batch_sizes"]
    assert sizes[2] < sizes[0] and sum(sizes) == pytest.approx(24, abs=1)
    record = lines_of(folder, 1, "window")[-1]
    assert record["network_source"] == "simulated" and record["push_bytes_per_s"] > 0
    assert record["cpu_ratio"] > 0 and record["noise_variance"] is not None
    run = read_run(folder)
    assert run.decided[-1].view.links[0].push_bytes_per_s == pytest.approx(record["push_bytes_per_s"], rel=0.3)
    state = state_of(read_told(RunFolder(folder)), 3)
    assert state.workers[2].train_s == pytest.approx(lines_of(folder, 0, "evaluation")[-1]["trained_s"], rel=0.05)


def test_a_rehearsal_repeats_itself(rehearse: Rehearse):
    def once(name: str) -> tuple[list[Any], torch.Tensor]:
        folder: Path = rehearse(
            name, policy={"name": "goodput"}, batch={"min": 1, "max": 64}, scenario=uneven(jitter=0.2)
        )
        model = train(4)
        kept = [
            {key: value for key, value in line.items() if key not in ("time_s", "pid")}
            for rank in range(3)
            for line in lines_of(folder, rank)
        ]
        return kept, torch.cat([p.detach().flatten() for p in model.parameters()])

    first, second = once("one"), once("two")
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
