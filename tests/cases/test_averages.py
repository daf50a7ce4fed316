"""Averages of the weights are the same on all workers, bit for bit, while their sizes change and after a resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cases.scripts.averages import DECAY, SAVED_AFTER
from tests.forked import ForkServer, Worker

PLANS = [[2, [8, 24]], [5, [30, 2]], [8, [12, 0]]]
FIRST = 24 + 8


def work(server: ForkServer, folder: Path, own: tuple[dict[str, str], ...] = ()) -> list[Worker]:
    folder.mkdir()
    job = {"name": "averages.of_changing_sizes", "plans": PLANS}
    workers = server.run("tests.cases.harness:work", job, folder, own=own, mode="observe", lr_rule="sqrt")
    for worker in workers:
        assert worker.code == 0, worker.output
    return workers


def test_all_workers_have_the_average_of_the_formula(server: ForkServer, tmp_path: Path) -> None:
    whole = work(server, tmp_path / "whole")
    first, second = (worker.result["values"] for worker in whole)
    assert first == second, "bit for bit"
    sizes = [sum(map(len, parts)) for parts in zip(*(worker.result["recorded"][0][0] for worker in whole), strict=True)]
    assert set(sizes) == {FIRST, 12}
    per_sample = DECAY ** (1 / FIRST)
    for last, one in enumerate(first["found"]):
        ends = np.cumsum(sizes[: last + 1])
        parts = per_sample ** (ends[-1] - ends) * (1 - per_sample ** np.array(sizes[: last + 1]))
        for place, averaged in enumerate(one["averages"][:-1]):  # the last counts batches
            values = np.array([earlier["weights"][place] for earlier in first["found"][: last + 1]])
            assert averaged == pytest.approx(parts @ values / parts.sum(), rel=1e-6, abs=1e-9)

    resume = {"DYNAMIX_RESUME": str(tmp_path / "whole/x.pt")}
    resumed = [worker.result["values"] for worker in work(server, tmp_path / "resumed", (resume, resume))]
    assert resumed[0] == resumed[1]
    assert resumed[0]["found"] == first["found"][SAVED_AFTER:]
    assert resumed[0]["error"] == first["error"]
