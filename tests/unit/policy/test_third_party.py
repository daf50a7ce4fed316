"""A policy from outside our packages, named by `package.module:Class`: created, asked, refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dynamix_ps.cli.main import cli
from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.errors import ConfigError, PolicyError
from dynamix_ps.messages import Plan
from dynamix_ps.policy.registry import findings, findings_at_start, make_policy
from tests.control_plane import config
from tests.third_party_policy import write_module
from tests.unit.arbitrator.service_bench import Bench
from tests.unit.synthetic_run import config as recorded_config
from tests.unit.synthetic_run import new_folder, whole_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a job is launched from, with the policy's module in it."""
    write_module(tmp_path)
    (tmp_path / "broken_policy.py").write_text("import no_such_package\nclass Grow(no_such_package.Policy): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("grow_policy", "broken_policy"):
        sys.modules.pop(name, None)


def cluster_file(folder: Path, policy: str) -> Path:
    file = folder / "c.yaml"
    file.write_text(f"cluster: {{workers: [{{}}, {{}}, {{}}]}}\npolicy:\n{policy}")
    return file


async def test_the_arbitrator_decides_with_it_under_the_options_of_the_cluster_file(folder: Path) -> None:
    loaded = load_config(cluster_file(folder, "  name: grow_policy:Grow\n  options: {step: 5}\n"), findings)

    bench = Bench(folder, make_policy(loaded, 3, np.random.default_rng(0)), loaded)
    bench.register_all()
    first = Plan(0, (64, 64, 64))
    await bench.window(0, first)
    assert bench.plan.batch_sizes == (69, 69, 69)


def test_a_run_folder_keeps_its_name_and_options(folder: Path) -> None:
    loaded = load_config(cluster_file(folder, "  name: grow_policy:Grow\n  options: {step: 5}\n"), findings)
    file = folder / "dumped.yaml"
    file.write_text(dump_config(loaded))
    assert load_config(file).policy == loaded.policy


def test_replay_asks_it(folder: Path) -> None:
    run = new_folder(folder)
    run.config_file.write_text(dump_config(recorded_config()))
    whole_run(run, windows=4)
    done = CliRunner().invoke(cli, ["replay", str(run.path), "--policy", "grow_policy:Grow"])
    assert done.exit_code == 0, done.output
    assert "72 72 72" in done.output
    assert "grow_policy:Grow differs in 4 of 4 windows" in done.output


@pytest.mark.slow
def test_it_competes_in_the_simulator(folder: Path) -> None:
    rivals = ["--against", "static", "--against", "grow_policy:Grow"]
    arguments = [*rivals, "--scenario", "homogeneous", "--workers", "2", "--seeds", "2"]
    done = CliRunner().invoke(cli, ["policy", "eval", *arguments])
    assert done.exit_code == 0, done.output
    assert "grow_policy:Grow" in done.output


def test_it_gets_what_its_constructor_names(folder: Path) -> None:
    asked = config().model_copy(update={"policy": PolicySection(name="grow_policy:Resumed")})
    rng = np.random.default_rng(0)
    made = make_policy(asked, 3, rng, Path("saved.npz"))
    assert vars(made) == {"rng": rng, "file": Path("saved.npz"), "config": asked}


async def test_an_answer_that_is_no_decision_leaves_the_sizes_and_is_told(folder: Path) -> None:
    asked = config().model_copy(update={"policy": PolicySection(name="grow_policy:Resumed")})

    bench = Bench(folder, make_policy(asked, 3, np.random.default_rng(0)), asked)
    bench.register_all()
    await bench.window(0, Plan(0, (64, 64, 64)))
    assert bench.plan.batch_sizes == (64, 64, 64)
    assert "expected a Decision with one batch size per worker" in bench.file.read_text()


@pytest.mark.parametrize(
    ("policy", "line", "message"),
    [
        ("  name: absent_policy:Grow\n", 3, r"policy\.name: there is no module absent_policy; install it, or launch"),
        ("  name: broken_policy:Grow\n", 3, r"broken_policy cannot be imported: .* No module named 'no_such_package'"),
        ("  name: grow_policy:Shrink\n", 3, r"grow_policy\.py has no class Shrink; name a class that this file"),
        ("  name: grow_policy:NUMBER\n", 3, r"grow_policy\.py has no class NUMBER"),
        (
            "  name: grow_policy:Loose\n",
            3,
            r"grow_policy\.py:39: Loose is no subclass of dynamix_ps\.policy\.base",
        ),
        ("  name: grow_policy:Handler\n", 3, r"Handler is no subclass of .* write class Handler\(Policy\)"),
        ("  name: grow_policy:Nameless\n", 3, r"expected an attribute `name` of type str"),
        ("  name: grow_policy:Undecided\n", 3, r"cannot be made: TypeError: .*abstract.* decide"),
        ("  name: grow_policy:Grow\n  options: {step: 0}\n", 3, r"cannot be made: ValueError: step must not be 0"),
        ("  name: grow_policy:Grow\n  options: {stride: 1}\n", 4, r"policy\.options: do not fit .*'stride'"),
        ("  name: grow_policy:Grow\n  options: {n_workers: 1}\n", 4, r"policy\.options: must not set n_workers"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_line_before_anything_starts(
    folder: Path, policy: str, line: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"c\.yaml:{line}: .*{message}"):
        load_config(cluster_file(folder, policy), findings_at_start)
    assert not (folder / "ran").exists()


def test_a_wrong_name_on_the_command_line_is_refused_too(folder: Path) -> None:
    asked = config().model_copy(update={"policy": PolicySection(name="absent_policy:Grow")})
    with pytest.raises(PolicyError, match="there is no module absent_policy"):
        make_policy(asked, 3, np.random.default_rng(0))
