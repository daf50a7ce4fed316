"""torch.compile with batch sizes that change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from dynamix_ps.messages import Plan
from dynamix_ps.report.summary import read_told, state_of
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.worker_hooks.local_run import open_run, settings_for
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.torch.compiled import mark_sizes

SIZES = (8, 5, 11, 7)


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> None:
    torch._dynamo.reset()


def trained(model: nn.Module, folder: Path) -> Run:
    """A training whose size changes every two iterations."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(200, 4, generator=generator), torch.randn(200, 1, generator=generator))
    session = Session(settings_for(folder, mode="observe"), "torch")
    run = open_run([model], [torch.optim.SGD(model.parameters(), lr=0.1)], data, session)

    def newest_plan() -> Plan | None:
        number = min(run.iteration // 2, len(SIZES) - 1)
        return Plan(number, (SIZES[number],)) if number else None

    session.newest_plan = newest_plan  # type: ignore[method-assign]
    for inputs, targets in run.batches(iterations=10):
        run.optimizers[0].zero_grad()
        run.backward(mse_loss(model(inputs), targets))
        run.optimizers[0].step()
    run.close()
    return run


def plain_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def in_run_folder(folder: Path) -> Any:
    (folder / "workers").mkdir()
    return folder


def test_one_graph_serves_all_sizes_and_the_weights_are_those_without_compiling(tmp_path):
    folders = [in_run_folder(tmp_path / name) for name in ("plain", "compiled") if not (tmp_path / name).mkdir()]
    plain, compiled = plain_model(), torch.compile(plain_model(), backend="aot_eager")
    trained(plain, folders[0])
    trained(compiled, folders[1])
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    workers = [state_of(read_told(RunFolder(folder)), 1).workers[0] for folder in folders]
    assert [(worker.graphs, worker.later_graphs) for worker in workers] == [(0, 0), (1, 0)]


def test_graphs_that_are_made_for_other_sizes_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("worker_hooks.torch.adapter.mark_sizes", lambda batch, samples: None)
    trained(torch.compile(plain_model(), backend="aot_eager", dynamic=False), in_run_folder(tmp_path))
    worker = state_of(read_told(RunFolder(tmp_path)), 1).workers[0]
    assert (worker.graphs, worker.later_graphs) == (len(SIZES), len(SIZES) - 1)


def test_only_tensors_with_a_row_for_each_sample_are_marked():
    batch = {"inputs": torch.zeros(6, 3), "targets": [torch.zeros(6)], "table": torch.zeros(4, 3), "name": "a"}
    mark_sizes(batch, 6)
    marked = [batch["inputs"], batch["targets"][0]]
    assert all(tensor._dynamo_weak_dynamic_indices == {0} for tensor in marked)
    assert not hasattr(batch["table"], "_dynamo_weak_dynamic_indices")
