"""A training process may fork at any time: children neither crash nor hang, and the client continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.arbitrator.arbitrator_process import ArbitratorProcess, wait_until

pytestmark = pytest.mark.timeout(180)

FORKS = 40
SWITCH = "GRPC_ENABLE_FORK_SUPPORT"
STORY = """
import sys
from tests.integration.arbitrator.fork_story import main
sys.exit(main(sys.argv[1], int(sys.argv[2])))
"""


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_story_survives() -> Iterator[None]:
    yield
    for run in _started:
        if run.poll() is None:
            run.kill()
            run.communicate()
    _started.clear()


def story(address: str, first: str = "", switch: str | None = None, forks: int = FORKS) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != SWITCH}
    if switch is not None:
        environment[SWITCH] = switch
    run = subprocess.Popen(
        [sys.executable, "-c", first + STORY, address, str(forks)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(run)
    return run


def tell(run: subprocess.Popen[str], line: str) -> None:
    assert run.stdin is not None
    run.stdin.write(f"{line}\n")
    run.stdin.flush()


def test_children_live_and_the_client_goes_on(arbitrator: ArbitratorProcess) -> None:
    run = story(arbitrator.address)
    tell(run, "go")
    said = [run.stdout.readline() for _ in range(3)] if run.stdout else []
    assert said == ["connected\n", "failed children: []\n", "events: [[], [], []]\n"]
    wait_until(lambda: arbitrator.last_window() == FORKS - 1, "the last window")  # before the workers leave
    out, err = run.communicate("leave\n", timeout=150)
    assert run.returncode == 0, out + err
    assert "may crash" not in err


def test_the_switch_in_the_environment_serves_scripts_that_import_grpc_first(arbitrator: ArbitratorProcess) -> None:
    run = story(arbitrator.address, first="import grpc; ", switch="0")
    out, err = run.communicate("go\nleave\n", timeout=150)
    assert run.returncode == 0, out + err
    assert "may crash" not in err


@pytest.mark.parametrize(
    ("first", "switch", "why"),
    [("import grpc; ", None, "gRPC was imported before dynamix"), ("", "1", "GRPC_ENABLE_FORK_SUPPORT is '1'")],
)
def test_what_cannot_be_cured_is_said(arbitrator: ArbitratorProcess, first: str, switch: str | None, why: str) -> None:
    run = story(arbitrator.address, first=first, switch=switch, forks=0)
    _, err = run.communicate("go\nleave\n", timeout=150)
    assert run.returncode == 0, err
    assert why in err
    assert "data-loader workers may crash" in err


def test_forking_while_the_arbitrator_hangs(arbitrator: ArbitratorProcess) -> None:
    run = story(arbitrator.address, forks=10)
    assert run.stdout is not None
    assert run.stdout.readline() == "connected\n"
    arbitrator.signal(signal.SIGSTOP)
    try:
        tell(run, "go")
        assert run.stdout.readline() == "failed children: []\n"
    finally:
        arbitrator.signal(signal.SIGCONT)
    out, err = run.communicate("leave\n", timeout=150)
    assert run.returncode == 0, out + err
