"""Batch norm: every worker normalises its own part, and all keep the same running statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cases.harness import data, in_double
from tests.forked import ForkServer


@pytest.mark.parametrize("sizes", [(24, 8), (24, 0), (24, 1)], ids=str)
def test_running_statistics_are_those_of_all_workers(
    sizes: tuple[int, int], server: ForkServer, tmp_path: Path
) -> None:
    """Weighted by samples; a part is never a single sample, and an empty part counts for nothing."""
    job = {"name": "normalisation.batch_norm", "plans": [[1, sizes]]}
    workers = server.run("tests.cases.harness:work", job, tmp_path, mode="observe", lr_rule="none")
    for worker in workers:
        assert worker.code == 0, worker.output
    first, second = (worker.result["values"] for worker in workers)
    assert first == second
    parts = list(zip(*(worker.result["recorded"][0][0] for worker in workers), strict=True))
    assert not any(len(rows) == 1 for part in parts for rows in part)
    assert any(len(rows) == sizes[1] - (sizes[1] == 1) for _, rows in parts)
    inputs = in_double(lambda _: data(), None).tensors[1]
    mean, variance = torch.zeros(6).double(), torch.ones(6).double()
    for part, found in zip(parts, first, strict=True):
        total = sum(map(len, part))
        mean, variance = 0.9 * mean, 0.9 * variance
        for rows in part:
            if rows:
                mean += 0.1 * len(rows) / total * inputs[rows].mean(0)
                variance += 0.1 * len(rows) / total * inputs[rows].var(0)
        assert found[0] == pytest.approx(mean.tolist(), rel=1e-6, abs=1e-9)
        assert found[1] == pytest.approx(variance.tolist(), rel=1e-6, abs=1e-9)
