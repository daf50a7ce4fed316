"""examples/torch_resnet.py: five lines more than the plain script, and the weights of one process on three workers."""

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

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE, PLAIN = ROOT / "examples/torch_resnet.py", ROOT / "examples/plain/torch_resnet.py"
SIZES = (27, 15, 6)  # together the batch size of the plain script


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("dynamix_ps.torch,torch._dynamo,sklearn.datasets") as running:
        yield running


def body(file: Path) -> list[str]:
    """The lines below the docstring."""
    text = file.read_text()
    end = ast.parse(text).body[0].end_lineno
    return [line for line in text.splitlines()[end:] if line]


def test_five_lines_change() -> None:
    changes = list(difflib.ndiff(body(PLAIN), body(EXAMPLE)))
    assert [line.rpartition("# ")[2] for line in changes if line.startswith("+ ")] == ["1", "2", "3", "4", "5"]
    assert sum(line.startswith("- ") for line in changes) == 3  # the loops and loss.backward()


def trained(file: str) -> list[list[float]]:
    """Weights after two epochs of the script in double precision, without its random shifts."""
    torch.set_default_dtype(torch.float64)
    text = Path(file).read_text()
    assert "EPOCHS, SHIFT = 6, 1" in text
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(text.replace("EPOCHS, SHIFT = 6, 1", "EPOCHS, SHIFT = 2, 0"), file, "exec"), names)
    finally:
        torch.set_default_dtype(torch.float32)
    return weights(names["model"])


def test_three_workers_are_one_process(server: ForkServer, tmp_path: Path) -> None:
    workers = server.run("tests.cases.test_loader_example:trained", str(EXAMPLE), tmp_path, SIZES, lr_rule="none")
    assert [worker.code for worker in workers] == [0, 0, 0], workers
    expected = list(flat(trained(str(PLAIN))))
    for worker in workers:
        assert list(flat(worker.result)) == pytest.approx(expected, rel=1e-5, abs=1e-5)
