"""The agent of a node of Ray: its streams, piece by piece."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from dynamix_ps.launch.targets.ray.agent import PIECE_BYTES, NodeAgent

pytestmark = pytest.mark.timeout(30)


def started(program: str, hides_gpus: bool = False) -> NodeAgent:
    agent = NodeAgent(hides_gpus, (sys.executable, "-c", program))
    agent.start()
    return agent


def all_of(agent: NodeAgent) -> tuple[bytes, bytes, int]:
    output, errors = b"", b""
    while True:
        said, complained, exit_code = agent.receive(1.0)
        assert len(said) <= PIECE_BYTES
        output, errors = output + said, errors + complained
        if exit_code is not None:
            return output, errors, exit_code


def test_what_is_sent_comes_back_whole_while_somebody_receives() -> None:
    agent = started("import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)")
    data = bytes(range(256)) * 4096  # more than pipes hold

    def send() -> None:
        for start in range(0, len(data), PIECE_BYTES):
            agent.send(data[start : start + PIECE_BYTES])
        agent.send(b"")

    sending = threading.Thread(target=send)
    sending.start()
    assert all_of(agent) == (data, b"", 0)
    sending.join()


def test_the_end_comes_with_what_was_said_on_standard_error() -> None:
    agent = started("import sys; sys.stderr.write('cannot'); sys.exit(3)")
    assert all_of(agent) == (b"", b"cannot", 3)
    agent.send(b"late")  # nobody reads it


def test_a_signal_is_a_negative_exit_code() -> None:
    assert all_of(started("import os; os.kill(os.getpid(), 9)"))[2] == -9


def test_a_process_that_holds_standard_error_open_does_not_delay_the_end() -> None:
    agent = started("import subprocess; subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)")
    assert all_of(agent) == (b"", b"", 0)


def test_signals_that_ray_blocks_reach_the_agent() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        agent = started("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))")
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert all_of(agent)[0] == b"set()\n"


def test_silence_is_an_empty_piece() -> None:
    agent = started("import sys; sys.stdin.read()")
    assert agent.receive(0.01) == (b"", b"", None)
    agent.send(b"")
    assert all_of(agent)[2] == 0


def test_roles_see_no_gpu_or_those_that_their_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # of the actor
    program = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    assert all_of(started(program))[0] == b"None\n"
    assert all_of(started(program, hides_gpus=True))[0] == b"\n"
