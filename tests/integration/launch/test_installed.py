"""The wheel in an environment of its own, without the checkout, BytePS, a compiler or the packages of the extras."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynamix_ps
from tests.integration.other_launchers.jobs import check_adapted, run_of
from tests.launching import ROOT, environment

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

SCRIPT = ROOT / "benchmarks" / "parts" / "processes" / "three_lines.py"
# What a user does not have who has installed torch and this package alone.
WITHOUT = re.compile(r"(__editable__|dynamix|byteps|matplotlib|mpl_toolkits|pylab|tensorboardX|mxnet|ray|pip\b)")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment: its packages are links to those of this one."""
    folder = tmp_path_factory.mktemp("installed")
    tree = folder / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if name.startswith(("dynamix_ps/", "server_hooks/", "worker_hooks/", "examples/", "docs/grafana/")) or (
            name in ("setup.py", "pyproject.toml", "README.md", "LICENSE")
        ):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    shutil.rmtree(tree)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    packages = next((folder / "env" / "lib").glob("python*")) / "site-packages"
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not WITHOUT.match(package.name) and package.suffix != ".pth":
            (packages / package.name).symlink_to(package)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Iterator[object]:
    """Runs a module of that environment in a folder; returns what it prints."""
    python = place / "env" / "bin" / "python"
    for tool in ("cat", "sh", "openssl"):  # no compiler, no git
        if (found := shutil.which(tool)) and not (python.parent / tool).exists():
            (python.parent / tool).symlink_to(found)
    assert not any(shutil.which(compiler, path=python.parent) for compiler in ("g++", "c++", "gcc", "cc"))
    changes = environment(PATH=str(python.parent))
    del changes["PYTHONPATH"], changes["DYNAMIX_PLOTS"]

    def module(name: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [python, "-m", name, *arguments],
            cwd=tmp_path,
            env=changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    yield module


def test_the_demo_trains_and_adapts(run, tmp_path: Path) -> None:
    output = run("dynamix_ps", "demo")
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert summary["exit_code"] == 0 and summary["comm"] == "gloo", output
    assert summary["metrics"]["accuracy"]["best"] > 0.8
    assert re.search(r"batch sizes \((\d+), (?!\1)\d+", output), "they follow the speeds"
    assert output.count("dynamix-ps[plots]") == 1, output


def test_an_example_is_copied_and_runs(run, tmp_path: Path) -> None:
    assert "torch_shapes" in run("dynamix_ps", "examples")
    assert "Next: dynamix launch" in run("dynamix_ps", "examples", "torch_tabular")
    launch = ("launch", "-c", "cluster.yaml", "--", "python", "torch_tabular.py")
    assert "all workers finished" in run("dynamix_ps", *launch)


def test_it_tells_its_version(run) -> None:
    assert dynamix_ps.__version__ in run("dynamix_ps", "--version")


def test_three_lines_adapt_under_torchrun_without_a_cluster_file(run, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    run("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    check_adapted(run_of(tmp_path), samples=2048)
