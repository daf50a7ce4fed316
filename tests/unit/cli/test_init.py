"""`dynamix init`: the file it writes loads, contains what was asked for, and replaces nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamix_ps.cli import init
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Cluster, Config, Worker
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import ConfigError, UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def run_init(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        init.command, ["-o", str(file), *arguments], catch_exceptions=False, standalone_mode=False
    )


def test_flags_are_in_the_file(file: Path) -> None:
    flags = ("--workers", "3", "--batch", "16", "--speeds", "1,0.5,0.25", "--policy", "pid", "--comm", "gloo")
    done = run_init(file, *flags, "--", "python", "train.py", "--name", "two words")
    config = load_config(file)
    assert [(worker.batch, worker.speed) for worker in config.cluster.workers] == [(16, 1.0), (16, 0.5), (16, 0.25)]
    assert (config.policy.name, config.comm) == ("pid", "gloo")
    assert config.command == ("python", "train.py", "--name", "two words")
    assert config.bounds(0)[0] <= 4 and config.bounds(0)[1] >= 64  # room to shrink and to grow
    assert done.output.splitlines()[-1] == f"next:    dynamix launch -c {file}"


def test_defaults_stand_for_flags_where_nobody_can_answer(file: Path) -> None:
    done = run_init(file)
    config = load_config(file)
    assert (len(config.cluster.workers), config.command) == (2, ())
    assert done.output.splitlines()[-1].endswith("-- python train.py")


def test_asks_on_a_terminal_when_no_flag_says_anything(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((3, 32, (1.0, 0.5, 0.25), "pid", "gloo", "python train.py --name 'two words'"))
    monkeypatch.setattr(init, "_ask", lambda question, default, kind: next(answers))
    monkeypatch.setattr(init, "_answers", lambda: True)
    run_init(file, "--force")
    config = load_config(file)
    assert [(worker.batch, worker.speed) for worker in config.cluster.workers] == [(32, 1.0), (32, 0.5), (32, 0.25)]
    assert (config.policy.name, config.comm, config.command[-1]) == ("pid", "gloo", "two words")
    run_init(file, "--force", "--policy", "static")  # would raise if it asked again
    assert load_config(file).policy.name == "static"


def test_a_file_is_replaced_only_by_force(file: Path) -> None:
    file.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        run_init(file)
    assert file.read_text() == "mine"
    run_init(file, "--force")
    assert load_config(file)


def test_what_does_not_fit_together_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="got 3 of them for 2 workers"):
        run_init(file, "--workers", "2", "--speeds", "1,1,1")
    with pytest.raises(ConfigError, match="local"):
        run_init(file, "--workers", "2", "--comm", "local")
    assert not file.exists()


@pytest.mark.parametrize("speeds", ["fast", "1,,1", "0,1", "2"])
def test_wrong_speeds_are_refused(file: Path, speeds: str) -> None:
    with pytest.raises(init.click.BadParameter, match="expected"):
        run_init(file, "--speeds", speeds)


@pytest.mark.parametrize("comm", DATA_PLANES)
def test_the_text_loads_as_the_same_configuration(file: Path, comm: str) -> None:
    choices = {"comm": comm, "target_accuracy": 0.85, "mode": "off", "command": ("python", "-c", "print('x: #y')")}
    config = Config(cluster=Cluster(workers=(Worker(batch=64, speed=0.123456789),)), **choices)
    file.write_text(init.annotated(config))
    assert load_config(file) == config


def test_every_key_has_its_description(file: Path) -> None:
    run_init(file)
    lines = file.read_text().splitlines()
    assert max(map(len, lines)) <= init.WIDTH
    for name, field in Config.model_fields.items():
        if field.description and any(line.startswith(f"{name}:") for line in lines):
            above = lines[next(n for n, line in enumerate(lines) if line.startswith(f"{name}:")) - 1]
            assert above.startswith("# ")
