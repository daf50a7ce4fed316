"""Scripts with `overlap: next_forward` and sums that have NaN in their places until somebody waits for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamix_ps.errors import PeerLostError, TrainingError
from tests import late_sums
from tests.cases import test_equal_to_one_process, test_refused
from tests.cases.harness import data, digest, net
from tests.forked import ForkServer, Worker

SCRIPTS = [
    "gradients.clip_by_norm",
    "gradients.grad_scaler",
    "gradients.layer_of_some_samples",
    "accumulation.over_batches",
    "kept.two_tasks",
    "parameters.unfreeze",
    "three_lines.accumulated",
    "weighted.padded_tokens",
]
REFUSED = ["infinite_loss", "backward_after_the_sum", "two_steps"]


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(late_sums.OVERLAP, "next_forward")


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_workers_are_one_process(name: str, server: ForkServer, tmp_path: Path) -> None:
    job = {"name": name, "plans": test_equal_to_one_process.PLANS}
    workers = server.run("tests.late_sums:work", job, tmp_path, mode="observe", lr_rule="none")
    test_equal_to_one_process.check(name, workers)
    assert all(worker.result["late"] for worker in workers), "no sum was late"


@pytest.mark.parametrize("name", REFUSED)
def test_errors_come_before_a_weight_changes(name: str, server: ForkServer, tmp_path: Path) -> None:
    for worker in server.run("tests.cases.harness:refuse", f"refused.{name}", tmp_path):
        assert worker.code == TrainingError.exit_code and "weights unchanged" in worker.output, worker.output
        assert re.search(test_refused.CASES[name], worker.output)


def lose_peer(job: tuple[int, bool]) -> None:
    """In a worker: another one is lost in iteration 3, before the sum of this bucket. The script saves in the end.

    The script may read gradients before its step.
    """
    import dynamix_ps.torch as dynamix

    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = dynamix.attach(model, optimizer, data())
    bucket, reads = job
    arrive, before, left = run.training.sums.exchange.arrive, "", [0]

    def lose(one: Any, on_slow: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise PeerLostError("another worker is gone")
        arrive(one, on_slow)

    run.training.sums.exchange.arrive = lose  # type: ignore[method-assign]
    try:
        for number, (_, x, y) in enumerate(run.batches(iterations=5)):
            optimizer.zero_grad()
            run.backward(nn.functional.mse_loss(model(x), y))
            before = digest(model)
            left[0] = bucket + 1 if number == 3 else 0
            if reads:
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
    except PeerLostError:
        print("the script catches it", flush=True)
        raise
    finally:
        print("the script saves", "the weights before" if digest(model) == before else "others", flush=True)


@pytest.mark.parametrize(("bucket", "saves"), [(0, False), (1, False), (3, False), (1, True)])
def test_a_worker_that_is_lost_between_two_buckets_leaves_no_weights(
    bucket: int, saves: bool, server: ForkServer, tmp_path: Path
) -> None:
    """Before the step the error is one as any other; after `step()` nothing of the script runs any more."""
    workers: list[Worker] = server.run("tests.cases.test_overlap:lose_peer", (bucket, saves), tmp_path)
    for worker in workers:
        assert worker.code == PeerLostError.exit_code, worker.output
        assert worker.output.count("error: another worker is gone") == 1
        assert ("the script catches it" in worker.output) == saves
        assert ("the script saves the weights before" in worker.output) == saves
        assert "the script saves others" not in worker.output


def test_what_waits_for_all_sums_says_so(server: ForkServer, tmp_path: Path) -> None:
    job = {"name": "gradients.clip_by_norm", "plans": []}
    workers = server.run("tests.late_sums:work", job, tmp_path, lr="guard", mode="adapt")
    assert [(worker.code, worker.result["late"]) for worker in workers] == [(0, 0), (0, 0)]
    assert "overlap: `lr: guard` looks at all gradients" in workers[0].output
