"""The commands of the README and of the examples work as described."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config.load import load_config
from tests.hosts.shown_commands import shown_commands
from tests.integration.training.small_training import NEEDS_MXNET
from tests.launching import ROOT, dynamix, ends, environment, run_to_end, summary_in

pytestmark = pytest.mark.timeout(240)

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = 6  # figures with an interval
LAUNCH = "dynamix launch -c examples/cluster.yaml -- python"


def blocks(language: str) -> list[str]:
    """The code blocks of the README in this language, "" for commands."""
    return [
        text
        for found, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
        if found == language
    ]


def launched(folder: Path, config: str, *command: str) -> tuple[str, dict[str, object]]:
    """What a whole `dynamix launch` in this checkout printed, and its summary."""
    process = dynamix("launch", "-c", config, "--run-dir", str(folder / "runs"), "--", *command, cwd=ROOT)
    output = ends(process, 0, limit_s=200)
    return output, summary_in(folder)


def test_the_first_page_is_short() -> None:
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 1000


def test_every_command_of_the_readme_is_run_here(tmp_path: Path) -> None:
    commands = [line for block in blocks("") for line in block.splitlines()]
    on_one, on_several = commands[:2], commands[2:]
    assert on_one == ["make demo", f".venv/bin/{LAUNCH} examples/torch_cnn.py"]  # the second: among the examples below
    assert list(shown_commands()) == ["ssh", "Slurm", "Kubernetes", "Ray"]  # in tests/hosts
    assert [line.partition(" # ")[0].rstrip() for line in on_several] == list(shown_commands().values())
    make = ["make", "--dry-run", "--no-print-directory", "demo"]
    plain = {name: value for name, value in environment().items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(make, cwd=ROOT, env=plain, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == ".venv/bin/dynamix launch -c configs/demo.yaml"
    train = [*load_config(ROOT / "configs" / "demo.yaml").command, "--data", "digits", "--epochs", "1"]
    _, summary = launched(tmp_path, "configs/demo.yaml", *train)  # shorter: its own data set takes a minute
    assert summary["exit_code"] == 0


def test_the_results_of_the_readme_are_what_their_command_computes(tmp_path: Path) -> None:
    inline = re.findall(r"`((?:python -m|dynamix|make) [^`]+)`", README)
    agent = "python -m benchmarks.studies.agent.worth --json FILE"
    assert inline == ["make demo", "make test", agent]
    shutil.copy(RESULTS / "agent.md", tmp_path)
    shutil.copytree(RESULTS / "agent", tmp_path / "agent")
    words = [sys.executable, *agent.split()[1:-1], str(tmp_path / "answers.json")]
    kept = ["--out", str(tmp_path), "--limit-s", "-1"]  # no run begins: the page comes from the kept rows
    subprocess.run([*words, *kept], cwd=ROOT, env=environment(), check=True)
    shutil.copy(RESULTS / "beside-ddp.md", tmp_path)  # the page beside the second table names its command
    pairs = ["-m", "benchmarks.report.paired", str(RESULTS / "beside-ddp"), "--out", str(tmp_path)]
    subprocess.run([sys.executable, *pairs], cwd=ROOT, env=environment(), check=True)
    shown = intervals(README)
    assert len(shown) == SHOWN
    assert shown <= intervals((tmp_path / "agent.md").read_text()) | intervals((tmp_path / "beside-ddp.md").read_text())


def intervals(page: str) -> set[str]:
    """Every cell of a table that is a figure with an interval."""
    cells = [cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.split("|")]
    return {cell for cell in cells if re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", cell)}


def test_the_script_of_the_readme_runs(tmp_path: Path) -> None:
    (diff,) = blocks("diff")
    lines = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
    made = """\
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_set = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randint(0, 3, (100,)))
"""
    script = "\n".join(made if line.endswith("= ...") else line for line in lines)
    done = run_to_end([sys.executable, "-c", script], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_cluster_file_of_the_readme_is_valid(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "cluster.yaml").write_text(text)
    assert len(load_config(tmp_path / "cluster.yaml").cluster.workers) == 2


def marks_of(example: Path) -> Any:
    if "mxnet" in example.stem:
        return NEEDS_MXNET
    if "lightning" in example.stem:
        return pytest.mark.skipif(not find_spec("lightning"), reason="the extra `lightning` is not installed")
    return ()


@pytest.mark.parametrize("example", [pytest.param(file, id=file.stem, marks=marks_of(file)) for file in EXAMPLES])
def test_an_example_trains_two_uneven_workers(tmp_path: Path, example: Path) -> None:
    script = f"examples/{example.name}"
    told = re.findall(r"^    (dynamix .*)$", ast.get_docstring(ast.parse(example.read_text())) or "", re.MULTILINE)
    assert told == [f"{LAUNCH} {script}"]
    output, summary = launched(tmp_path, "examples/cluster.yaml", "python", script)
    assert (summary["exit_code"], summary["workers"]) == (0, 2)
    if accuracy := re.search(r"test accuracy ([\d.]+)%", output):
        assert float(accuracy[1]) > 85
    else:
        losses = [float(loss) for loss in re.findall(r"([\d.]+) nats per byte", output)]
        assert losses and losses[-1] < 3.5  # log(256) = 5.5 if all bytes were alike


def test_a_job_needs_no_cluster_file(tmp_path: Path) -> None:
    command = ("python", str(ROOT / "examples" / "torch_tabular.py"))
    process = dynamix("launch", "-n", "2", "--batch", "16", "--comm", "gloo", "--", *command, cwd=tmp_path)
    output = ends(process, 0, limit_s=200)
    assert "2 workers over gloo: first size 16 each" in output
    assert summary_in(tmp_path)["batch_sizes_start"] == [16, 16]
