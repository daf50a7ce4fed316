"""What a wheel of this tree installs: no top-level package `benchmarks`; `dynamix` works with and without one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
BUILT_FROM = ("setup.py", "pyproject.toml", "README.md", "dynamix_ps", "server_hooks", "worker_hooks", "benchmarks")
PATHS = """\
import sys
from pathlib import Path
sys.path[:] = [path for path in sys.path if not (Path(path) / "benchmarks").exists()]
sys.path[:0] = sys.argv.pop().split(":")
"""
HELP = "from dynamix_ps.cli.main import main\nsys.argv[1:] = ['--help']\nsys.exit(main())\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built from a copy: a build in the checkout would take up what earlier builds left there."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in BUILT_FROM:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(PROJECT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(command, cwd=tree, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def shown(*paths: Path, cwd: Path) -> str:
    """`dynamix --help` of the wheel, with packages from nowhere else but these paths and the environment."""
    command = [sys.executable, "-c", PATHS + HELP, ":".join(map(str, paths))]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_the_wheel_holds_our_three_packages_only(installed: Path) -> None:
    names = {entry.name for entry in installed.iterdir() if not entry.name.endswith(".dist-info")}
    assert names == {"dynamix_ps", "server_hooks", "worker_hooks"}
    assert all((installed / name / "py.typed").exists() for name in names), "type checkers of users read the types"


def test_elsewhere_than_on_linux_the_import_says_so() -> None:
    tried = "import sys; sys.platform = 'darwin'; import dynamix_ps.torch"
    done = subprocess.run([sys.executable, "-c", tried], capture_output=True, text=True, check=False)
    told = "ImportError: dynamix_ps runs on Linux alone, and this is darwin; use a machine or container with Linux"
    assert done.stderr.splitlines()[-1] == told


def test_bench_is_a_command_where_the_benchmarks_are(installed: Path) -> None:
    without = shown(installed, cwd=installed)
    assert "launch" in without and "bench" not in without
    assert "\n  bench" in shown(installed, installed.parent / "tree", cwd=installed)
