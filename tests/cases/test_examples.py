"""Examples beside their plain versions: five lines more, and the weights of one process on three workers."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases.harness import flat, weights
from tests.forked import ForkServer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = {"torch_resnet": (27, 15, 6), "torch_tokens": (17, 11, 4)}  # together the batch size of the plain script
SHORTER = {  # fewer epochs, and no random shifts
    "torch_resnet": ("EPOCHS, SHIFT = 10, 1", "EPOCHS, SHIFT = 2, 0"),
    "torch_tokens": ("EPOCHS, WARM_UP = 2, 10", "EPOCHS, WARM_UP = 1, 10"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("dynamix_ps.torch,sklearn.datasets") as running:
        yield running


def test_every_plain_script_is_here() -> None:
    assert {file.stem for file in (EXAMPLES / "plain").glob("*.py")} == set(SIZES)


def body(file: Path) -> list[str]:
    """The lines below the docstring."""
    text = file.read_text()
    end = ast.parse(text).body[0].end_lineno
    return [line for line in text.splitlines()[end:] if line]


@pytest.mark.parametrize("name", SIZES)
def test_five_lines_change(name: str) -> None:
    changes = list(difflib.ndiff(body(EXAMPLES / "plain" / f"{name}.py"), body(EXAMPLES / f"{name}.py")))
    assert [line.rpartition("# ")[2] for line in changes if line.startswith("+ ")] == ["1", "2", "3", "4", "5"]
    assert sum(line.startswith("- ") for line in changes) == 3  # the loops and loss.backward()


def trained(file: str) -> list[list[float]]:
    """Weights after a short run of the script in double precision."""
    torch.set_default_dtype(torch.float64)
    text = Path(file).read_text()
    whole, shorter = SHORTER[Path(file).stem]
    assert whole in text
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(text.replace(whole, shorter), file, "exec"), names)
    finally:
        torch.set_default_dtype(torch.float32)
    return weights(names["model"])


@pytest.mark.parametrize("name", SIZES)
def test_three_workers_are_one_process(name: str, server: ForkServer, tmp_path: Path) -> None:
    example, plain = EXAMPLES / f"{name}.py", EXAMPLES / "plain" / f"{name}.py"
    workers = server.run("tests.cases.test_examples:trained", str(example), tmp_path, SIZES[name], lr_rule="none")
    assert [worker.code for worker in workers] == [0, 0, 0], workers
    expected = list(flat(trained(str(plain))))
    for worker in workers:
        assert list(flat(worker.result)) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def accuracy_of_shards(file: str) -> float:
    """Of the network after half of the passes over the tar files."""
    text = Path(file).read_text()
    whole = "EPOCHS, PER_SHARD = 8, 50"
    assert whole in text
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text.replace(whole, "EPOCHS, PER_SHARD = 4, 50"), file, "exec"), names)
    return float((names["found"].numpy() == names["labels"][1500:]).mean())


def test_the_example_with_shards_learns_on_three_workers(server: ForkServer, tmp_path: Path) -> None:
    file = str(EXAMPLES / "torch_shards.py")
    workers = server.run("tests.cases.test_examples:accuracy_of_shards", file, tmp_path, (32, 16, 16), lr_rule="none")
    assert [worker.code for worker in workers] == [0, 0, 0], workers
    assert len({worker.result for worker in workers}) == 1
    assert workers[0].result > 0.8
