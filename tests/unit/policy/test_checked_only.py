"""A policy from elsewhere that a command only checks: its source is read, and nothing of it runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dynamix_ps.cli.main import cli
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import ConfigError, PolicyError
from dynamix_ps.launch.preflight.launch_checks import check_machine
from dynamix_ps.policy.registry import check_policy, findings, make_policy
from dynamix_ps.policy.third_party import class_of, constructor_of

LEAVES_A_TRACE = "open('ran', 'w').close()\n"
POLICY = f"""{LEAVES_A_TRACE}
from dynamix_ps.policy.base import Decision, Policy

class Loud(Policy):
    name = "loud"
    def __init__(self, n_workers, *, step: int = 8):
        open('ran', 'w').close()
    def decide(self, view):
        return Decision(view.plan.batch_sizes)

class Heir(Loud):
    pass

if True:
    class Within(Policy):
        name = "within"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Packages whose modules leave a trace when they are imported."""
    (tmp_path / "loud" / "inner").mkdir(parents=True)
    (tmp_path / "loud" / "__init__.py").write_text(f"{LEAVES_A_TRACE}from .policy import Loud as Louder\n")
    (tmp_path / "loud" / "inner" / "__init__.py").write_text("from ..policy import *\n")
    (tmp_path / "loud" / "policy.py").write_text(POLICY)
    (tmp_path / "open" / "inner").mkdir(parents=True)  # without __init__.py
    (tmp_path / "open" / "inner" / "policy.py").write_text(POLICY)
    (tmp_path / "circle.py").write_text("from circle import Circle\n")
    (tmp_path / "wrong.py").write_text("class Wrong(Base):\n  def __init__(self, a, a): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("loud", "open", "circle", "wrong")]:
        del sys.modules[name]


def cluster_file(folder: Path, name: str = "loud.policy:Loud", options: str = "{step: 4}") -> str:
    file = folder / "c.yaml"
    file.write_text(
        "cluster: {workers: [{}, {}]}\ncomm: gloo\n"
        f"policy: {{name: '{name}', options: {options}}}\ncommand: [python, -c, '1']\n"
    )
    return str(file)


CHECKS = {
    "dry run": ["launch", "--dry-run", "-c"],
    "sbatch": ["sbatch", "--dry-run", "-c"],
    "k8s": ["k8s", "--image", "image:1", "-c"],
}
REHEARSE = ["rehearse", "--policy", "static", "--out", "study", "-c"]
ABSENT = ["--", "python", "absent.py"]  # refused after the cluster file, and before a rehearsal starts


@pytest.mark.parametrize("command", CHECKS.values(), ids=CHECKS)
def test_a_command_that_checks_a_file_runs_nothing_of_its_policy(folder: Path, command: list[str]) -> None:
    done = CliRunner().invoke(cli, [*command, cluster_file(folder)])
    assert done.exit_code == 0, done.output
    assert not (folder / "ran").exists()


def test_a_rehearsal_runs_nothing_of_it_before_it_starts(folder: Path) -> None:
    done = CliRunner().invoke(cli, [*REHEARSE, cluster_file(folder), *ABSENT])
    assert "script not found: absent.py" in str(done.exception)
    assert not (folder / "ran").exists()


def test_the_check_of_a_machine_runs_nothing_of_it(folder: Path) -> None:
    check_machine(load_config(cluster_file(folder), findings))
    assert not (folder / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", [*CHECKS.values(), ["doctor", "-c"], REHEARSE, ["launch", "-c"]], ids=" ".join)
def test_a_function_that_is_named_as_a_policy_is_never_called(folder: Path, command: list[str]) -> None:
    """In a process of its own: a call would run a command of the shell."""
    file = cluster_file(folder, "os:system", "{command: 'touch ran'}")
    dynamix = [sys.executable, "-m", "dynamix_ps.cli.main"]
    done = subprocess.run([*dynamix, *command, file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{file}:3: policy.name:" in done.stderr
    assert "has no class system; name a class that this file defines" in done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["loud.policy:Loud", "loud:Louder", "open.inner.policy:Loud"])
def test_options_are_checked_by_the_source_alone(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"c\.yaml:3: policy\.options: do not fit {name}\(n_workers, \*, step=8\): "):
        load_config(cluster_file(folder, name, "{stride: 4}"), findings)
    check_policy(load_config(cluster_file(folder, name), findings))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["loud.policy:Heir", "loud.policy:Within", "loud.policy:Loud"])
def test_a_class_is_found_wherever_its_module_defines_it(folder: Path, name: str) -> None:
    known = constructor_of(name)
    assert known is None or list(known.parameters) == ["n_workers", "step"]
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loud.absent:Loud", r"there is no module loud\.absent; install it, or launch from the folder"),
        ("loud.policy.deeper:Loud", r"there is no module loud\.policy\.deeper"),
        ("loud.inner:Loud", r"inner/__init__\.py has no class Loud"),
        ("open.inner.absent:Loud", r"there is no module open\.inner\.absent"),
        ("circle:Circle", r"circle:Circle is imported from module to module"),
        ("wrong:Wrong", r"module wrong cannot be read .*duplicate argument"),
        ("subprocess:Popen", r"Popen is no subclass of dynamix_ps\.policy\.base\.Policy"),
    ],
)
def test_what_the_source_shows_to_be_wrong_is_told(folder: Path, name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        constructor_of(name)
    assert not (folder / "ran").exists()


def test_only_a_subclass_of_the_base_class_is_called(folder: Path) -> None:
    with pytest.raises(PolicyError, match="Handler is no subclass"):
        class_of("logging:Handler")
    loaded = load_config(cluster_file(folder), findings)
    assert make_policy(loaded, 2, np.random.default_rng(0)).name == "loud"
    assert (folder / "ran").exists()
