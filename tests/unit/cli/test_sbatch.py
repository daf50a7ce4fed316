"""`dynamix sbatch`: which words are its own, which are sbatch's, and what is checked before it submits."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamix_ps.cli.main import cli
from dynamix_ps.errors import ConfigError, DynamixError, EnvironmentNotReady, UsageError

CLUSTER = "name: mine\ncomm: gloo\ncluster: {workers: [{}, {}]}\n"
SBATCH = """\
#!/bin/sh
[ "$1" = --help ] && { echo "      --container-image=[USER@]IMAGE  of a plugin"; exit 0; }
cat > "$0.script"
[ $# = 0 ] && grep -q partition=none "$0.script" && { echo "sbatch: error: invalid partition" >&2; exit 1; }
echo "Submitted batch job 7"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a cluster file, a script, and a program that stands for sbatch."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def sbatch(words: str) -> Result:
    return CliRunner().invoke(cli, ["sbatch", *shlex.split(words)], standalone_mode=False)


def launch_in(script: str) -> list[str]:
    (line,) = [line for line in script.splitlines() if line.startswith("exec ")]
    assert shlex.split(line)[1:5] == [sys.executable, "-m", "dynamix_ps", "launch"]
    return shlex.split(line)[5:]


def test_own_options_and_those_of_sbatch_in_any_order(folder: Path) -> None:
    words = (
        "--time 1:00:00 -c c.yaml -pcpu --policy=static --dry-run --comment 'a b' --mode off -- python train.py -c x"
    )
    done = sbatch(words)
    assert done.exception is None, done
    directives = [line.removeprefix("#SBATCH ") for line in done.output.splitlines() if line.startswith("#SBATCH")]
    assert directives[-3:] == ["--time 1:00:00", "-pcpu", "--comment 'a b'"]
    changes = ["--policy", "static", "--mode", "off"]
    assert launch_in(done.output) == ["-c", f"{folder}/c.yaml", *changes, "--", "python", "train.py", "-c", "x"]
    assert not (folder / "sbatch.script").exists()


def test_options_of_a_plugin_are_those_that_sbatch_tells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "-c c.yaml --container-image nvcr.io/a --dry-run -- python train.py"
    assert "#SBATCH --container-image nvcr.io/a\n" in sbatch(words).output
    monkeypatch.setenv("PATH", "/nowhere")
    assert isinstance(sbatch(words).exception, UsageError)


def test_it_submits_the_script(folder: Path) -> None:
    (folder / "c.yaml").write_text(CLUSTER + "command: [python, train.py]\n")
    done = sbatch("-c c.yaml --nodes=1")
    assert (done.return_value, done.output) == (0, "Submitted batch job 7\n")
    script = (folder / "sbatch.script").read_text()
    assert "#SBATCH --nodes=1\n" in script
    assert launch_in(script) == ["-c", f"{folder}/c.yaml"]


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        ("-c c.yaml", UsageError, "no command for the workers"),
        ("-c c.yaml -- python none.py", UsageError, "script not found: none.py"),
        ("-c none.yaml -- python train.py", ConfigError, "none.yaml: no such file"),
        ("-c c.yaml --resume none.pt -- python train.py", UsageError, "--resume: no checkpoint file none.pt"),
        ("-c c.yaml python train.py", UsageError, "'python' is no option of sbatch"),
        ("-c c.yaml --exclusive python train.py", UsageError, "'python' is no option of sbatch"),
        ("-c c.yaml --polcy=ppo -- python train.py", UsageError, "--polcy: neither dynamix sbatch nor Slurm's sbatch"),
        ("-c c.yaml --polcy=ppo -- python train.py", UsageError, "did you mean --policy?"),
        ("-c c.yaml --partitions cpu -- python train.py", UsageError, "did you mean --partition?"),
        ("-c c.yaml --part=cpu -- python train.py", UsageError, "did you mean --partition?"),
        ("-c c.yaml -nodes=2 -- python train.py", UsageError, "did you mean --nodes?"),
        ("-c c.yaml --container-imag=a -- python train.py", UsageError, "--container-imag: neither"),
        ("-c c.yaml -Z -- python train.py", UsageError, "-Z: neither"),
        ("-c c.yaml -n1 --nodes=2 -- python train.py", UsageError, "sbatch is told of 1 tasks for 2 workers"),
        (
            "-c c.yaml --partition=none -- python train.py",
            EnvironmentNotReady,
            "sbatch refuses the job: sbatch: error: invalid partition; see its script by --dry-run",
        ),
    ],
)
def test_what_is_wrong_is_told_before_it_waits_in_the_queue(
    folder: Path, words: str, kind: type[DynamixError], reason: str
) -> None:
    done = sbatch(words)
    assert isinstance(done.exception, kind), done
    assert reason in str(done.exception)


def test_without_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = sbatch("-c c.yaml -- python train.py")
    assert isinstance(done.exception, EnvironmentNotReady)
    assert "there is no sbatch here" in str(done.exception)
