"""`dynamix launch -n N`: a job without a cluster file."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner, Result

from dynamix_ps.byteps_build.install import InstalledInfo
from dynamix_ps.cli import launch
from dynamix_ps.cli.main import cli
from dynamix_ps.cli.options import without_file
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import ConfigError, UsageError


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The jobs that were launched. BytePS is not installed."""
    configs: list[Config] = []
    monkeypatch.setattr(launch, "run_job", lambda config, *rest, given, waits: configs.append(config) or 0)
    monkeypatch.setattr(without_file, "installed_info", InstalledInfo)
    return configs


def command(words: str) -> Result:
    return CliRunner().invoke(cli, ["launch", *shlex.split(words)], standalone_mode=False)


def test_the_number_of_workers_is_enough_and_what_was_chosen_is_said(launched: list[Config]) -> None:
    done = command("-n 3 -- python train.py")
    [config] = launched
    assert config.initial_sizes() == (64, 64, 64)
    assert (config.bounds(0), config.policy.name, config.comm) == ((16, 256), "proportional", "gloo")
    assert config.command == ("python", "train.py")
    assert done.output == (
        "3 workers over gloo: first size 64 each (--batch), from 16 to 256 (--bounds), policy proportional (--policy)\n"
    )


def test_byteps_is_used_where_it_is_installed(launched: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_file, "installed_info", lambda: InstalledInfo("0.2.5"))
    command("-n 2 -- python train.py")
    command("-n 2 --comm gloo -- python train.py")
    assert [config.comm for config in launched] == ["byteps", "gloo"]


def test_options_say_what_a_cluster_file_would(launched: list[Config]) -> None:
    command("-n 2 --batch 32 --bounds 8,48 --speeds 1,0.5 --policy ppo --run-dir elsewhere -- python train.py")
    [config] = launched
    assert [worker.speed for worker in config.cluster.workers] == [1, 0.5]
    assert (config.bounds(1), config.policy.name, config.run_dir) == ((8, 48), "ppo", "elsewhere")


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("-- true", UsageError, "give one with -c, or the number of workers with -n"),
        ("--batch 8 -- true", UsageError, "give one with -c, or the number of workers with -n"),
        ("-n 3 --speeds 1,1 -- true", UsageError, "got 2 speeds for 3 workers"),
        ("-n 2 -c c.yaml -- true", UsageError, "for jobs without a cluster file; say it in c.yaml"),
        ("-n 2 --dry-run -- true", UsageError, "write one with `dynamix init`"),
        ("-n 2 --bounds 100,200 -- true", ConfigError, "begins with 64 samples per batch, expected 100 to 200"),
    ],
)
def test_what_does_not_fit_is_refused(words: str, kind: type[Exception], said: str, launched: list[Config]) -> None:
    done = command(words)
    assert isinstance(done.exception, kind)
    assert said in str(done.exception)
    assert not launched
