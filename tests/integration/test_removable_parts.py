"""Each part that pyproject.toml calls removable can be deleted, and all of them: the rest is imported and trains.

With a part go the commands and the parts that stand on it: the importers that its contract allows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
import tomllib

from benchmarks.parts.structure import REMOVABLE
from tests.launching import ROOT, environment, run_to_end, summary_in

pytestmark = pytest.mark.timeout(120)

PRODUCT = ("dynamix_ps", "server_hooks", "worker_hooks")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PARTS = {
    one["name"].removeprefix(REMOVABLE): {*one["protected_modules"], *one["allowed_importers"]} - {"benchmarks"}
    for one in CONTRACTS
    if one["name"].startswith(REMOVABLE)
}
EVERY = set().union(*PARTS.values())
# What takes most of the time of an import of all, where it is installed. It knows nothing of our modules.
HEAVY = ("torch", "transformers", "lightning", "accelerate", "torchmetrics", "matplotlib.figure", "scipy.stats", "ray")
# Forks a process per line of the standard input: a folder, and modules that are imported from there.
IMPORTS = """
import importlib, importlib.util, os, sys, traceback
for name in sys.argv[1:]:
    if importlib.util.find_spec(name.partition(".")[0]):
        importlib.import_module(name)
for line in sys.stdin:
    folder, *modules = line.split()
    read, write = os.pipe()
    if os.fork() == 0:
        sys.path.insert(0, folder)
        try:
            for module in modules:
                importlib.import_module(module)
            os.write(write, b"imported")
        except BaseException:
            os.write(write, repr(traceback.format_exc()[-4000:]).encode())
        os._exit(0)
    os.close(write)
    with open(read) as told:
        print(told.read(), flush=True)
    os.wait()
"""
TRAINING = """
import torch
import dynamix_ps.torch as dynamix

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(400, 5), torch.randn(400, 2))
model = torch.nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = dynamix.attach(model, optimizer, data)
for inputs, targets in run.batches(epochs=3):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
run.close()
"""
CLUSTER = """
name: core
run_dir: runs
comm: gloo
window: 5
cluster: {workers: [{batch: 16}, {batch: 8}]}
batch: {min: 4, max: 32}
policy: {name: model}
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product without all of these parts."""
    return _copy_without(EVERY, tmp_path_factory.mktemp("core"))


def _copy_without(part: Collection[str], folder: Path) -> Path:
    for top in PRODUCT:
        # With what is compiled already; a test beside this one may be writing more, under such names.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / top, folder / top, copy_function=_link, ignore=ignored)
    for module in part:
        place = folder / module.replace(".", "/")
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.with_suffix(".py").unlink(missing_ok=True)  # it may lie in a folder that is gone
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _modules(core: Path) -> Sequence[str]:
    files = [file.relative_to(core) for top in PRODUCT for file in sorted((core / top).rglob("*.py"))]
    names = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
    return [name for name in names if not name.endswith("__main__") and ".sources." not in name]


@pytest.fixture(scope="module")
def importing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    command, pipe = [sys.executable, "-c", IMPORTS, *HEAVY], subprocess.PIPE
    folder = tmp_path_factory.mktemp("importing")
    environ = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=folder, env=environ, text=True) as process:
        yield process
        process.communicate()


@pytest.mark.parametrize("part", [*PARTS, "all of them"])
def test_the_rest_is_imported(part: str, importing: subprocess.Popen[str], tmp_path: Path) -> None:
    copy = _copy_without(PARTS.get(part, EVERY), tmp_path)
    assert importing.stdin is not None and importing.stdout is not None
    importing.stdin.write(" ".join([str(copy), *_modules(copy)]) + "\n")
    importing.stdin.flush()
    assert importing.stdout.readline() == "imported\n"


def test_two_workers_train(core: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "dynamix_ps", "launch", "-c", "cluster.yaml", "--", "python", "train.py"]
    done = run_to_end(command, tmp_path, environment(PYTHONPATH=str(core)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_in(tmp_path)["samples"] == 3 * 400


def test_a_command_of_a_missing_part_says_so(core: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dynamix_ps", "sim", "calibrate"]
    done = run_to_end(command, tmp_path, environment(PYTHONPATH=str(core)))
    assert done.returncode == 3
    assert "this part is not installed: dynamix_ps.cli.sim" in done.stderr
