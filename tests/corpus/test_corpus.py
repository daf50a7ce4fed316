"""Every script of this folder comes to the weights of one process in plain torch, or is refused as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamix_ps.errors import TrainingError
from tests.corpus.harness import plainly, refusal_of
from tests.forked import ForkServer, Worker

FOLDER = Path(__file__).parent
OURS = {"__init__", "draws", "harness", "test_corpus"}
SCRIPTS = {file.stem: file for file in sorted(FOLDER.glob("*.py")) if file.stem not in OURS}
REFUSED = {name: refusal for name, file in SCRIPTS.items() if (refusal := refusal_of(file))}
SIZES, PLANS = (20, 12), [[2, [9, 23]], [5, [32, 0]], [8, [17, 21]]]  # the global batch changes too
MOST_LINES = 80


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.corpus.harness") as running:
        yield running


def two_workers(file: Path, server: ForkServer, folder: Path) -> list[Worker]:
    job = {"file": str(file), "plans": PLANS}
    return server.run("tests.corpus.harness:work", job, folder, SIZES, mode="observe", lr_rule="none")


def check(file: Path, workers: list[Worker]) -> None:
    """All have what one process in plain torch has that trains on the batches of all of them."""
    for worker in workers:
        assert worker.code == 0, worker.output
    first, *others = (worker.result["values"] for worker in workers)
    assert all(other == first for other in others), "the workers differ"
    expected = plainly(str(file), [worker.result["recorded"] for worker in workers])
    assert first.keys() == expected.keys()
    for module, tensors in expected.items():
        for number, tensor in enumerate(tensors):
            found = torch.tensor(first[module][number])
            assert torch.allclose(found, torch.tensor(tensor), rtol=1e-6, atol=1e-6), f"tensor {number} of {module}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_alone_it_is_plain_training(name: str, server: ForkServer, tmp_path: Path) -> None:
    job: dict[str, Any] = {"file": str(SCRIPTS[name]), "plans": []}
    check(SCRIPTS[name], server.run("tests.corpus.harness:alone", job, tmp_path, (32,)))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in REFUSED])
def test_two_workers_with_changing_sizes_are_one_process(name: str, server: ForkServer, tmp_path: Path) -> None:
    workers = two_workers(SCRIPTS[name], server, tmp_path)
    check(SCRIPTS[name], workers)
    assert not any(": loss: it " in worker.output for worker in workers), "a warning about a loss that is right"
    sizes = {len(rows) for loops in workers[0].result["recorded"] for batches in loops for rows in batches}
    assert sizes >= {size for size, _ in (SIZES, *(plan for _, plan in PLANS))}, sizes


def in_three_lines(text: str) -> str:
    """A script as under DistributedDataParallel: it loops over `run.loader`, and calls `backward` of its losses."""
    text = re.sub(r"run\.epochs\((\w+)\)", r"range(\1)", text.replace("run.batches()", "run.loader"))
    return re.sub(r"run\.backward\(([^=\n]+)\)\n", r"(\1).backward()\n", text)


THREE_LINES = {
    name: text for name, file in SCRIPTS.items() if "run.loader" in (text := in_three_lines(file.read_text()))
}


@pytest.mark.parametrize("name", [name for name in THREE_LINES if name not in REFUSED])
def test_in_three_lines_it_is_one_process_too(name: str, server: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(THREE_LINES[name])
    check(file, two_workers(file, server, tmp_path))


@pytest.mark.parametrize("name", REFUSED)
def test_all_workers_refuse_what_cannot_be_right(name: str, server: ForkServer, tmp_path: Path) -> None:
    for worker in two_workers(SCRIPTS[name], server, tmp_path):
        errors = [line for line in worker.output.splitlines() if line.startswith("error: ")]
        assert worker.code == TrainingError.exit_code and len(errors) == 1, worker.output
        assert re.search(REFUSED[name], errors[0]), errors[0]
        assert "weights unchanged" in worker.output


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short(name: str) -> None:
    assert len(SCRIPTS[name].read_text().splitlines()) <= MOST_LINES
