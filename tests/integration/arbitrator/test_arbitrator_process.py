"""The arbitrator as a process: plans, kill -9, hangs, bad addresses, orderly stop."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dynamix_ps.messages import Plan
from dynamix_ps.rpc.proven_channel import ProvenChannel
from tests.control_plane import config
from tests.integration.arbitrator.arbitrator_process import (
    PATIENCE_S,
    RUN_ID,
    TOKEN,
    ArbitratorProcess,
    Worker,
    wait_until,
)
from tests.launching import run_to_end

pytestmark = pytest.mark.timeout(120)

START = Plan(0, (64, 64, 64))
UNEVEN_S = (1.0, 2.0, 3.0)  # compute seconds of the workers: they need different sizes


@pytest.fixture
def workers(arbitrator: ArbitratorProcess) -> Iterator[list[Worker]]:
    started = [Worker(arbitrator.address, rank) for rank in range(3)]
    for worker in started:
        worker.client.start()
    yield started
    for worker in started:
        worker.client.close(2.0)


def all_hold(workers: list[Worker], version: int) -> bool:
    return all((plan := worker.client.newest_plan()) is not None and plan.version >= version for worker in workers)


def report_window(workers: list[Worker], plan: Plan, window: int, times_s: tuple[float, ...] = UNEVEN_S) -> None:
    for worker, compute_s in zip(workers, times_s, strict=True):
        worker.report(plan, window, compute_s=compute_s)


def test_three_workers_report_and_get_the_same_plan(arbitrator: ArbitratorProcess, workers: list[Worker]) -> None:
    report_window(workers, START, 0)
    wait_until(lambda: all_hold(workers, 1), "plan 1")
    plans = {worker.client.newest_plan() for worker in workers}
    assert plans == {Plan(1, (105, 52, 35))}
    wait_until(lambda: len(workers[1].client.peers()) == 3, "a heartbeat that knows all")
    assert all(peer.alive for peer in workers[1].client.peers())
    assert all(worker.events == [] for worker in workers)
    assert arbitrator.lines("plan")[0]["batch_sizes"] == [105, 52, 35]


def test_progress_reaches_the_other_workers(workers: list[Worker]) -> None:
    workers[2].client.progress(41)
    wait_until(lambda: any(p.rank == 2 and p.iteration == 41 for p in workers[0].client.peers()), "worker 2's progress")


def test_kill_9_and_restart_goes_on_from_the_journal(arbitrator: ArbitratorProcess, workers: list[Worker]) -> None:
    report_window(workers, START, 0)
    wait_until(lambda: all_hold(workers, 1), "plan 1")
    first = workers[0].client.newest_plan()
    assert first is not None

    arbitrator.signal(signal.SIGKILL)
    arbitrator.wait()
    wait_until(lambda: all(worker.kinds() == ["degraded"] for worker in workers), "one warning per worker")
    for worker in workers:
        worker.report(first, 1)
    assert all(worker.client.newest_plan() == first for worker in workers)

    arbitrator.start()
    arbitrator.wait_listening()
    wait_until(lambda: all(worker.kinds() == ["degraded", "recovered"] for worker in workers), "recovery")
    wait_until(lambda: len(arbitrator.lines("kept")) == 1, "the window that is held")  # reported while it was away
    report_window(workers, first, 2, (9.0, 1.0, 1.0))
    wait_until(lambda: all_hold(workers, 2), "plan 2")
    assert [line["restarts"] for line in arbitrator.lines("started")] == [0, 1]
    assert [line["window"] for line in arbitrator.lines("plan", "kept")] == [0, 1, 2]
    assert len({worker.client.newest_plan() for worker in workers}) == 1
    assert [fields["what"] for _, fields in workers[0].events] == ["arbitrator", "arbitrator"]
    assert "training goes on" in workers[0].events[0][1]["detail"]


def test_a_hanging_arbitrator_blocks_nobody(arbitrator: ArbitratorProcess, workers: list[Worker]) -> None:
    wait_until(lambda: len(workers[0].client.peers()) == 3, "all to be registered")
    arbitrator.signal(signal.SIGSTOP)
    try:
        report_window(workers, START, 0)
        wait_until(lambda: all("degraded" in worker.kinds() for worker in workers), "the hang to be noticed")
        for worker in workers:  # far more than the queue holds: the oldest go, nobody waits
            for window in range(1, 1000):
                worker.report(START, window)
            assert worker.client.dropped_records >= 900
    finally:
        arbitrator.signal(signal.SIGCONT)
    wait_until(lambda: all(worker.kinds()[-1] == "recovered" for worker in workers), "recovery")
    wait_until(lambda: any(line["window"] == 999 for line in arbitrator.lines("plan", "kept")), "window 999")


def test_health_service_needs_no_token(arbitrator: ArbitratorProcess) -> None:
    with grpc.insecure_channel(arbitrator.address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("call", ["Register", "Report", "Heartbeat", "Leave", "Observe", "Plans"])
def test_bytes_that_cannot_be_read_are_refused_and_told_once(arbitrator: ArbitratorProcess, call: str) -> None:
    with grpc.insecure_channel(arbitrator.address) as channel:
        for _ in range(3):
            proven = ProvenChannel(channel, RUN_ID, TOKEN)
            ask = proven.unary_stream(f"/dynamix.arbitrator.Arbitrator/{call}", bytes, bytes)
            with pytest.raises(grpc.RpcError) as refused:
                next(ask(b"\xff\xff\xff", timeout=PATIENCE_S))
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"the bytes are not a {call}Request" in refused.value.details()
    arbitrator.kill()
    assert [line["detail"].partition(";")[0] for line in arbitrator.lines("rejected")] == [
        f"the bytes are not a {call}Request"
    ]
    assert arbitrator.log.count("the bytes are not") == 1
    assert "Traceback" not in arbitrator.log


def test_sigterm_is_an_orderly_stop(arbitrator: ArbitratorProcess, workers: list[Worker]) -> None:
    report_window(workers, START, 0)
    wait_until(lambda: all_hold(workers, 1), "plan 1")
    arbitrator.signal(signal.SIGTERM)
    assert arbitrator.wait() == 0
    assert [line["decisions"] for line in arbitrator.lines("stopped")] == [1]


def test_leaving_is_noted(arbitrator: ArbitratorProcess, workers: list[Worker]) -> None:
    wait_until(lambda: len(workers[0].client.peers()) == 3, "all to be registered")
    workers[0].client.close(2.0)
    assert [line["rank"] for line in arbitrator.lines("left")] == [0]


def test_ppo_lives_in_the_process_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    learning = config(policy="ppo", space="paper", file="fresh", learn=True, windows_per_update=2)
    arbitrator = ArbitratorProcess(tmp_path / "run", learning)
    workers = [Worker(arbitrator.address, rank) for rank in range(3)]
    plan, window = START, 0

    def one_more_window() -> None:
        nonlocal plan, window
        for worker in workers:
            worker.report(plan, window)
        wait_until(lambda: arbitrator.last_window() == window, "a decision")
        decided = arbitrator.lines("plan", "kept")[-1]
        wait_until(lambda: all_hold(workers, decided["version"]) or decided["version"] == plan.version, "the plan")
        plan, window = Plan(decided["version"], tuple(decided["batch_sizes"])), window + 1

    def updates() -> list[float]:
        return [line["updates"] for line in arbitrator.lines("update")]

    try:
        arbitrator.start()
        arbitrator.wait_listening()
        for worker in workers:
            worker.client.start()
        for _ in range(6):  # a window is rewarded in the next one, and collected when another follows
            one_more_window()
        wait_until(lambda: updates() == [1, 2], "two updates")
        arbitrator.signal(signal.SIGKILL)
        arbitrator.wait()
        arbitrator.start()
        arbitrator.wait_listening()
        for _ in range(5):  # the first after a restart only settles things
            one_more_window()
        wait_until(lambda: updates() == [1, 2, 3], "an update that counts on")
        versions = [line["version"] for line in arbitrator.lines("plan")]
        assert versions == sorted(set(versions))
        assert len(versions) >= 5
    finally:
        for worker in workers:
            worker.client.close(2.0)
        arbitrator.kill()


def test_address_in_use_is_exit_3(arbitrator: ArbitratorProcess, tmp_path: Path) -> None:
    second = ArbitratorProcess(tmp_path / "second", config(), address=arbitrator.address)
    result = run_to_end([sys.executable, "-m", "dynamix_ps.arbitrator"], env=second.environment)
    assert result.returncode == 3
    assert f"error: arbitrator: cannot listen on {arbitrator.address}" in result.stderr
    assert "Traceback" not in result.stderr
    assert second.lines("started") == []


def test_address_of_a_plain_socket_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = ArbitratorProcess(tmp_path, config(), address=f"127.0.0.1:{taken.getsockname()[1]}")
        process.start()
        assert process.wait() == 3


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"DYNAMIX_TOKEN": ""}, 3, "DYNAMIX_TOKEN not set"),
        ({"DYNAMIX_RUN_DIR": "/proc/nowhere"}, 3, "run folder must exist"),
        ({"DYNAMIX_CONFIG": "/nonexistent.yaml"}, 2, "/nonexistent.yaml"),
    ],
)
def test_bad_environment_ends_with_a_message(tmp_path: Path, change: dict[str, str], code: int, text: str) -> None:
    process = ArbitratorProcess(tmp_path, config())
    result = run_to_end([sys.executable, "-m", "dynamix_ps.arbitrator"], env=process.environment | change)
    assert result.returncode == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_damaged_policy_file_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"not a policy")
    process = ArbitratorProcess(tmp_path / "run", config(policy="ppo", file=str(tmp_path / "bad.npz")))
    result = run_to_end([sys.executable, "-m", "dynamix_ps.arbitrator"], env=process.environment)
    assert result.returncode == 1
    assert "bad.npz: not a policy file" in result.stderr
    assert "Traceback" not in result.stderr
