"""`dynamix init`: the file it writes loads, contains what was asked for, and replaces nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamix_ps.cli import init
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import ConfigError, UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def run_init(file: Path, *arguments: str, answers: str = "") -> Result:
    return CliRunner().invoke(
        init.command, ["-o", str(file), *arguments], input=answers, catch_exceptions=False, standalone_mode=False
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
    monkeypatch.setattr(init, "_who_answers", lambda: init._prompt)
    run_init(file, "--force", answers="3\n32\n1,0.5,0.25\npid\ngloo\npython train.py --name 'two words'\n")
    config = load_config(file)
    assert [(worker.batch, worker.speed) for worker in config.cluster.workers] == [(32, 1.0), (32, 0.5), (32, 0.25)]
    assert (config.policy.name, config.comm, config.command[-1]) == ("pid", "gloo", "two words")
    run_init(file, "--force", "--policy", "static")  # would raise if it asked again
    assert load_config(file).policy.name == "static"


# A wrong answer to each question, with the right ones before it, and what is wrong.
WRONG = {
    "workers": ("0", "0 is not in the range 1<=x<=1024"),
    "batch": ("3\nmany", "'many' is not a valid integer range"),
    "speeds": ("3\n\n1,1", "got 2 speeds for 3 workers, expected one per worker"),
    "policy": ("3\n\n\nppa", "'ppa' is not one of 'static'"),
    "comm": ("3\n\n\n\nlocal", "comm: is for one worker, the cluster has 3; use byteps"),
    "command": ("3\n\n\n\n\npython 'x", "No closing quotation"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_answer_is_asked_again_at_once_with_the_reason(
    file: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "_who_answers", lambda: init._prompt)
    answers, reason = WRONG[key]
    done = run_init(file, answers=answers + "\n3" * (key == "workers") + "\n" * 6)
    (error,) = [line for line in done.output.splitlines() if line.startswith("Error: ")]
    assert reason in error
    times = {one: done.output.count(question.text) for one, question in init.QUESTIONS.items()}
    assert times == {one: 2 if one == key else 1 for one in init.QUESTIONS}
    assert len(load_config(file).cluster.workers) == 3


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_answer_from_a_pipe_is_an_error_with_its_key(file: Path, key: str) -> None:
    answers, reason = WRONG[key]
    with pytest.raises(UsageError) as caught:
        run_init(file, answers=answers)
    assert str(caught.value).startswith(f"answer for {key}: ") and reason in str(caught.value)
    assert not file.exists()


def test_what_a_pipe_does_not_say_has_its_default(file: Path) -> None:
    run_init(file, answers="1\n\n0.5\n")
    config = load_config(file)
    assert [(worker.batch, worker.speed) for worker in config.cluster.workers] == [(64, 0.5)]
    assert (config.policy.name, config.comm) == ("proportional", "byteps")


def test_nobody_answers_in_vain(file: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        run_init(file.parent / "none" / "cluster.yaml", answers="1\n")


def test_a_file_is_replaced_only_by_force(file: Path) -> None:
    file.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        run_init(file)
    assert file.read_text() == "mine"
    run_init(file, "--force")
    assert load_config(file)


def test_what_does_not_fit_together_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="got 3 speeds for 2 workers"):
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
    config = Config(cluster=Cluster(workers=(WorkerSection(batch=64, speed=0.123456789),)), **choices)
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
