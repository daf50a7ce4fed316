"""`dynamix policy`: a small training, its files, continuing it; comparing, inspecting, exporting."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dynamix_ps.cli import policy as policy_command
from dynamix_ps.cli import policy_train
from dynamix_ps.cli.main import cli
from dynamix_ps.errors import EnvironmentNotReady, PolicyError, UsageError
from dynamix_ps.policy.ppo.policy_file import load_policy
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.contest.pictures import smoothed
from dynamix_ps.sim.scenario.load import load_scenario
from dynamix_ps.sim.training.scenario_draw import draw_from
from dynamix_ps.sim.training.trainer import PolicyTrainer

SMALL = ("--workers", "2", "--workers", "3", "--environments", "4")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["policy", *map(str, arguments)], standalone_mode=False)


def train(folder: Path, *more: str, windows: int = 300) -> Result:
    return run("train", "-o", folder, *SMALL, "--windows", str(windows), *more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "new"
    result = train(folder)
    assert result.exception is None, result.exception
    return folder


def test_training_leaves_policy_curve_and_checkpoint(trained: Path) -> None:
    assert {file.name for file in trained.iterdir()} == {
        "policy.npz", "checkpoint.npz", "learning.csv", "learning.png", "tensorboard",
    }  # fmt: skip
    assert (trained / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert list((trained / "tensorboard").iterdir())
    rows = policy_train.read_learning(trained / "learning.csv")
    windows = [row["windows"] for row in rows]
    assert windows == sorted(set(windows)) and windows[-1] >= 300
    assert all(np.isfinite(row["reward"]) for row in rows)
    provenance = load_policy(trained / "policy.npz", None).provenance
    assert provenance["command"].split()[0] == "dynamix"  # and what was typed behind it, here nothing or pytest's
    assert provenance["windows"] == windows[-1]
    assert provenance["settings"]["n_workers"] == [2, 3]


@pytest.mark.slow
def test_a_broken_off_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = PolicyTrainer.iterate

    def interrupted(self: PolicyTrainer) -> dict[str, float]:
        if self.windows >= 256:
            raise KeyboardInterrupt
        return iterate(self)

    with monkeypatch.context() as patch:
        patch.setattr(PolicyTrainer, "iterate", interrupted)
        assert train(tmp_path / "x", windows=500).exit_code != 0
    assert not (tmp_path / "x" / "policy.npz").exists()
    broken_off = policy_train.read_learning(tmp_path / "x" / "learning.csv")
    with (tmp_path / "x" / "learning.csv").open("a") as out:
        out.write("999999,1.0")  # a line cut off, of an update after the checkpoint
    result = train(tmp_path / "x", "--resume", windows=500)
    assert result.exception is None, result.exception
    rows = policy_train.read_learning(tmp_path / "x" / "learning.csv")
    assert rows[: len(broken_off)] == broken_off
    windows = [row["windows"] for row in rows]
    assert windows == sorted(set(windows)) and 500 <= windows[-1] < 999999
    assert rows[-1]["seconds"] > broken_off[-1]["seconds"]


def test_a_training_is_never_overwritten_nor_continued_with_other_settings(trained: Path, tmp_path: Path) -> None:
    assert isinstance(error := train(trained).exception, UsageError)
    assert "--resume" in str(error)
    assert isinstance(train(tmp_path / "none", "--resume").exception, UsageError)
    assert isinstance(error := train(trained, "--resume", "--seed", "1").exception, PolicyError)
    assert "settings" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--space", "paper"), ("--learner", "simple"), ("--scenario", "slow-link")])
def test_kinds_of_training(arguments: tuple[str, str], tmp_path: Path) -> None:
    result = train(tmp_path / "x", *arguments, windows=100)
    assert result.exception is None, result.exception
    settings = load_policy(tmp_path / "x" / "policy.npz", None).provenance["settings"]
    assert settings["reward"]["name"] == ("PaperReward" if "paper" in arguments else "GoodputReward")
    assert settings["learner"]["learner"] == ("simple" if "simple" in arguments else "clip")


@pytest.mark.slow
def test_the_time_of_the_reward_paper_is_chosen_and_kept(tmp_path: Path) -> None:
    result = train(tmp_path / "x", "--space", "paper", "--time", "per_sample", windows=100)
    assert result.exception is None, result.exception
    about = json.loads(run("inspect", "--json", tmp_path / "x" / "policy.npz").output)
    assert about["provenance"]["settings"]["reward"]["time"] == "per_sample"
    for wrong in (("--time", "per_sample"), ("--space", "paper", "--reward", "goodput", "--time", "per_iteration")):
        error = train(tmp_path / "y", *wrong).exception
        assert isinstance(error, UsageError) and "--reward paper" in str(error)
    assert not (tmp_path / "y").exists()


def test_scenarios_replace_random_clusters() -> None:
    """Every cluster is one of them, all turn up, at the size that is asked for."""
    scenarios = [load_scenario("slow-link"), load_scenario("server-ingress")]
    drawn = draw_from(scenarios)(np.random.default_rng(0), 40, 3)
    known = parameters_of([scenario.with_workers(3) for scenario in scenarios])
    which = (drawn.model_bytes == known.model_bytes[1]).astype(int)
    assert 5 < which.sum() < 35
    for name in ("model_bytes", "server_bytes_per_s", "link_bytes_per_s", "initial"):
        assert (getattr(drawn, name) == getattr(known, name)[which]).all()


def test_inspect_and_export(trained: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.npz"
    assert run("export", trained / "policy.npz", small).exception is None
    about = json.loads(run("inspect", "--json", small).output)
    before = json.loads(run("inspect", "--json", trained / "policy.npz").output)
    assert before["bytes"] > 2 * about["bytes"]
    assert {name: one["optimizer state"] for name, one in about["networks"].items()} == {"batch": False, "share": False}
    for one in (about, before):
        for network in one["networks"].values():
            network.pop("optimizer state")
    ignored = {"bytes": 0, "file": ""}
    assert about | ignored == before | ignored
    text = run("inspect", small).output
    assert "provenance.command" in text and "structured" in text
    assert isinstance(run("inspect", tmp_path / "none.npz").exception, PolicyError)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_eval_compares_files_with_rivals(trained: Path, tmp_path: Path) -> None:
    chosen = ("--scenario", "h-level-10", "--workers", "3", "--seeds", "2", "--against", "goodput")
    files = ("--csv", tmp_path / "runs.csv", "--png", tmp_path / "x.png")
    result = run("eval", trained / "policy.npz", *chosen, *files)
    assert result.exception is None, result.exception
    assert "h-level-10" in result.output and "goodput" in result.output
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 2 * 2
    assert (tmp_path / "x.png").exists()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(policy_command, "find_spec", lambda name: None if name == "scipy" else object())
    error = train(tmp_path / "x").exception
    assert isinstance(error, EnvironmentNotReady)
    assert "scipy" in str(error) and "dynamix-ps[sim" in str(error)


def test_smoothing_leaves_gaps_out() -> None:
    nan = float("nan")
    assert smoothed(np.array([1.0, nan, 3.0]), span=3).tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(smoothed(np.array([nan, nan]))).all()
