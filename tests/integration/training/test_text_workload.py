"""The language model of the benchmarks on two uneven workers, with sizes in tokens, and in one process."""

from __future__ import annotations

import functools
import optparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads.text import CONTEXT
from tests.launching import dynamix, ends, summary_in

pytestmark = pytest.mark.timeout(180)

CLUSTER = """\
name: t
seed: 3
run_dir: {folder}/runs
comm: {comm}
cluster: {{workers: {workers}}}
batch: {{unit: tokens, min: {least}, max: 4096{batch}}}
window: 5
lr_rule: none
policy: {{name: {policy}}}
"""
LEAST = 4 * CONTEXT
TWO, ONE = "[{batch: 1024}, {batch: 1024, speed: 0.5}]", "[{batch: 2048}]"
# The workload's own script; it keeps the model to write its weights.
SCRIPT = """
import os, sys
import numpy as np
import torch
from benchmarks.workloads import models, train
kept = []
make_model = models.make_model
models.make_model = lambda *arguments: kept.append(make_model(*arguments)) or kept[0]
train.main()
weights = torch.cat([parameter.detach().flatten() for parameter in kept[0].parameters()])
np.save(f"weights-{os.environ.get('DMLC_WORKER_ID', 0)}.npy", weights.numpy())
"""
OPTIONS = "--data text --model gpt --epochs 1 --optimizer adamw --lr 0.003 --schedule cosine --metric bpb"


Trained = tuple[dict[str, Any], list[np.ndarray]]


def trained(folder: Path, comm: str, workers: str, policy: str, batch: str = "", options: str = "") -> Trained:
    """The summary and every worker's weights. `batch`: more keys of that section; `options`: more of the script."""
    folder.mkdir()
    cluster = CLUSTER.format(folder=folder, comm=comm, workers=workers, policy=policy, least=LEAST, batch=batch)
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "script.py").write_text(SCRIPT)
    words = [*OPTIONS.split(), "--path", optparse.__file__, "--eval-samples", "400", *options.split()]
    process = dynamix("launch", "-c", "cluster.yaml", "--", "python", "script.py", *words, cwd=folder)
    ends(process, 0, limit_s=150)
    return summary_in(folder), [np.load(file) for file in sorted(folder.glob("weights-*.npy"))]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """The training of two workers with fixed sizes, by further options of the script: what others are compared with."""
    folder = tmp_path_factory.mktemp("compared")
    return functools.cache(lambda options: trained(folder / f"two{options}", "gloo", TWO, "static", options=options))


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_two_workers_learn_the_same_weights(tmp_path: Path, comm: str) -> None:
    summary, (first, second) = trained(tmp_path / "two", comm, TWO, "random")
    assert (summary["exit_code"], summary["degraded"], summary["counted"]) == (0, [], "tokens")
    assert summary["plans_applied"] >= 1
    assert np.array_equal(first, second)
    values = [one["values"] for one in summary["evaluations"]]
    assert set(values[0]) == {"accuracy", "loss", "bpb"}
    assert summary["metrics"]["bpb"]["higher_is_better"] is False
    assert values[-1]["bpb"] < values[0]["bpb"] < 8, "8 bits if all bytes were alike"
    assert values[-1]["bpb"] == pytest.approx(values[-1]["loss"] / np.log(2), rel=1e-6)


def test_two_workers_learn_what_one_process_learns(tmp_path: Path, two_workers: Callable[[str], Trained]) -> None:
    """The same batches, summed in another order: Adam makes much of rounding errors where gradients are tiny."""
    two, (weights, _) = two_workers("")
    one, (alone,) = trained(tmp_path / "one", "local", ONE, "static")
    assert two["iterations"] == one["iterations"]
    assert np.linalg.norm(weights - alone) < 1e-3 * np.linalg.norm(alone)
    bpb = [summary["evaluations"][-1]["values"]["bpb"] for summary in (two, one)]
    assert bpb[0] == pytest.approx(bpb[1], abs=1e-3)


@pytest.mark.parametrize("options", ["", "--autocast bf16"])
def test_accumulation_over_micro_batches_learns_what_whole_batches_do(
    tmp_path: Path, two_workers: Callable[[str], Trained], options: str
) -> None:
    """Sizes of 1024 tokens, of which 256 are computed at once."""
    keys = f", at_once: {4 * CONTEXT}, micro_batches: true"
    parts, (divided, other) = trained(tmp_path / "parts", "gloo", TWO, "static", keys, options)
    whole, (at_once, _) = two_workers(options)
    assert np.array_equal(divided, other)
    assert parts["iterations"] == whole["iterations"] and parts["degraded"] == []
    bpb = [summary["evaluations"][-1]["values"]["bpb"] for summary in (parts, whole)]
    assert bpb[0] == pytest.approx(bpb[1], abs=0.03 if options else 1e-3)
    if not options:
        assert np.linalg.norm(divided - at_once) < 1e-3 * np.linalg.norm(at_once)


def test_mixed_precision_learns_and_is_not_single_precision(two_workers: Callable[[str], Trained]) -> None:
    single, (of_single, _) = two_workers("")
    mixed, (of_mixed, other) = two_workers("--autocast bf16")
    assert np.array_equal(of_mixed, other) and not np.array_equal(of_mixed, of_single)
    values = [summary["evaluations"][-1]["values"] for summary in (single, mixed)]
    assert values[1]["bpb"] == pytest.approx(values[0]["bpb"], abs=0.05)
    assert values[1]["bpb"] == pytest.approx(values[1]["loss"] / np.log(2), rel=1e-6), "losses are in float32"
