"""`dynamix launch` over ssh, with a real sshd on each of three hosts: it trains, and every ending leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.testbed.ssh_hosts import unavailable
from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.one_thread import ONE_THREAD
from tests.hosts.shown_commands import shown_words
from tests.hosts.three_hosts import HOSTS, LOGIN, Launchers, ThreeHosts, cluster_file, lines_of, ssh_clients
from tests.launching import (
    HOOK,
    ROOT,
    assert_nothing_left,
    command_line,
    dynamix,
    ends,
    kill_all,
    read_until,
    reapers_of,
    run_id_in,
    summary_in,
    wait_for,
)

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(unavailable() is not None, reason=f"no hosts: {unavailable()}"),
]

THREE_HOSTS = ROOT / "configs" / "three-hosts.yaml"
TRAINS = "started(); print('training', rank, flush=True)\nwhile True: time.sleep(0.1)\n"
TOLD = "signal.signal(signal.SIGTERM, lambda *_: (print('told to end', rank, flush=True), sys.exit(0)))\n"
ENDS = "started(); print('here', rank, os.environ['DYNAMIX_HOST'], flush=True); finished()\n"
# Says whether the token can be seen from outside of the roles.
SPIES = """
import psutil
started()
token, run_id = (os.environ[f"DYNAMIX_{name}"] for name in ("TOKEN", "RUN_ID"))
seen = []
for process in psutil.process_iter(["cmdline", "environ", "name"]):
    of_run = (process.info["environ"] or {}).get("DYNAMIX_RUN_ID") == run_id
    told = [*(process.info["cmdline"] or ()), *(() if of_run else (process.info["environ"] or {}).values())]
    seen += [process.info["name"]] * any(token in text for text in told)
names = {process.info["name"] for process in psutil.process_iter(["name"])}
print("saw", " and ".join(sorted(names & {"ssh", "sshd"})) + ", with the token:", seen, flush=True)
finished()
"""
REAL = """
import torch
import dynamix_ps.torch as dynamix

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(8192, 8), torch.randint(0, 2, (8192,)))
run = dynamix.attach(model, optimizer, data)
for inputs, targets in run.batches(iterations=ITERATIONS):
    optimizer.zero_grad()
    run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    optimizer.step()
print("weights", *(repr(p.double().abs().sum().item()) for p in model.parameters()), flush=True)
run.close()
"""


# Workers vote for the plans PLANS, which are (first iteration, version, sizes), one iteration before they take effect.
FOLLOWS = """
import itertools

from dynamix_ps.messages import Plan
from worker_hooks.session import Session

iterations = itertools.count()

def newest_plan(session):
    now = next(iterations)
    held = [Plan(version, tuple(sizes)) for first, version, sizes in PLANS if first <= now + 1]
    return held[-1] if held else None

Session.newest_plan = newest_plan
"""


def runs(pid: int) -> bool:
    return bool(command_line(f"{pid}"))  # a zombie has none


def gone_within(run_id: str, limit_s: float, others: Iterable[int] = ()) -> None:
    def left() -> list[int]:
        return [*processes_of(run_id), *reapers_of(run_id), *filter(runs, others)]

    try:
        wait_for(lambda: not left(), "the end of all processes", limit_s)
        assert_nothing_left(run_id)
    finally:
        kill_all(run_id)


def agents_of(run_id: str, host: str = "") -> set[int]:
    """The agents of all hosts or of one, while their roles run."""
    parents = {psutil.Process(pid).ppid() for pid in processes_of(run_id, host)}
    return {pid for pid in parents if "dynamix_ps.launch.host.agent" in command_line(f"{pid}")}


def read_until_all_train(launcher: subprocess.Popen[str]) -> str:
    seen = ""
    while not all(f"training {rank}" in seen for rank in range(len(HOSTS))):
        seen += read_until(launcher, "training")
    return seen


def weights_in(output: str) -> list[str]:
    return [line.split("weights ")[1] for line in output.splitlines() if "| weights" in line]


def applied_plans(folder: Path) -> list[tuple[int, int, list[int]]]:
    """(first iteration, version, sizes) of all plans that the workers of the newest run have followed."""
    of_all = [
        [(line["iteration"], line["version"], line["batch_sizes"]) for line in lines if line["kind"] == "plan_applied"]
        for lines in (lines_of(folder, rank) for rank in range(len(HOSTS)))
    ]
    assert of_all[0] == of_all[1] == of_all[2]
    return of_all[0]


def numbers_in(weights: str) -> list[float]:
    return [float(number) for number in weights.split()]


def test_the_example_with_three_hosts_trains_and_adapts(hosts: ThreeHosts, tmp_path: Path, started: Launchers) -> None:
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / THREE_HOSTS.name
    file.write_text(f"{THREE_HOSTS.read_text()}\nenv: {json.dumps(ONE_THREAD)}\n")
    (tmp_path / "train.py").write_text(REAL.replace("ITERATIONS", "150"))
    started.append(job := hosts.dynamix(tmp_path, *shown_words("ssh", "--policy", "random")))
    output = ends(job, 0, limit_s=80)
    assert len(weights_in(output)) == 3
    assert len(set(weights_in(output))) == 1, output
    summary = summary_in(tmp_path)
    assert (summary["comm"], summary["workers"], summary["iterations"]) == ("byteps", 3, 150)
    assert summary["plans_applied"] >= 1
    folder = tmp_path / "runs" / "latest"
    assert {path.stem for path in (folder / "logs").glob("*.log")} >= {f"worker-{rank}" for rank in range(3)}
    assert all((folder / "roles" / f"server-{index}.jsonl").stat().st_size for index in range(3))
    assert_nothing_left(run_id_in(output))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("comm", ["gloo", "byteps"])
def test_the_weights_are_those_of_one_host(hosts: ThreeHosts, tmp_path: Path, started: Launchers, comm: str) -> None:
    """With the same plans at the same iterations: those of three hosts are recorded, and one host follows them.

    Each worker has one thread: two add in another order, and a worker alone on its host would have all cores. A ring
    adds in one order; a server for several hosts adds as gradients come in.
    """
    script, sizes = REAL.replace("ITERATIONS", "100"), (96, 64, 32)
    adapts: dict[str, Any] = {
        "policy": {"name": "random"},
        "batch": {"min": 8, "max": 128},
        "window": 4,
        "lr_rule": "linear",
    }
    file = cluster_file(tmp_path, script, sizes=sizes, comm=comm, mode="adapt", **adapts)
    started.append(three := hosts.launch(tmp_path, "-c", str(file)))
    over_ssh = weights_in(ends(three, 0, limit_s=80))
    plans = applied_plans(tmp_path)
    assert len(plans) >= 2, "sizes have changed"
    file = cluster_file(tmp_path, f"PLANS = {plans!r}\n{FOLLOWS}{script}", {}, sizes, comm, "observe", **adapts)
    started.append(one := dynamix("launch", "-c", str(file), cwd=tmp_path))
    on_one_host = weights_in(ends(one, 0, limit_s=80))
    assert applied_plans(tmp_path) == plans
    assert (len(set(over_ssh)), len(set(on_one_host))) == (1, 1)
    if comm == "gloo":
        assert on_one_host == over_ssh
    assert numbers_in(on_one_host[0]) == pytest.approx(numbers_in(over_ssh[0]), rel=1e-6)


def test_a_launcher_on_none_of_the_hosts_reaches_all_and_hides_the_token(
    hosts: ThreeHosts, tmp_path: Path, started: Launchers
) -> None:
    file = cluster_file(tmp_path, HOOK + SPIES)
    started.append(job := hosts.launch(tmp_path, "-c", str(file), on=LOGIN))
    output = ends(job, 0)
    assert output.count("saw ssh and sshd, with the token: []") == 3, output
    assert_nothing_left(run_id_in(output))


def test_settings_of_the_user_count_and_an_open_connection_stays_open(
    hosts: ThreeHosts, tmp_path: Path, started: Launchers
) -> None:
    socket, known = tmp_path / "open", hosts.folder / "known-hosts"
    lines = ("HostName 10.77.0.2", "RequestTTY force", "LocalForward 2222 localhost:22", f"ControlPath {socket}")
    kept = known.read_text()
    hosts.configure("Host big\n" + "".join(f"  {line}\n" for line in lines))
    master = hosts.ssh("-MN", "big", on=LOGIN)
    try:
        wait_for(socket.exists, "the user's connection")
        known.write_text("")  # a new connection would be refused
        file = cluster_file(tmp_path, HOOK + ENDS, {"big": "10.77.0.2"})
        started.append(job := hosts.launch(tmp_path, "-c", str(file), on=LOGIN))
        assert "worker-0 | here 0 big" in ends(job, 0)
        assert master.poll() is None
    finally:
        known.write_text(kept)
        hosts.configure("")
        master.terminate()
        master.wait()


def assert_ctrl_c_ends_in_order(job: subprocess.Popen[str]) -> None:
    """`job`: its workers run `TOLD` and `TRAINS`, one on each host."""
    seen = read_until_all_train(job)
    agents = agents_of(run_id_in(seen))
    assert len(agents) == 3
    job.send_signal(signal.SIGINT)
    output = ends(job, 130, seen)
    assert "interrupted by SIGINT" in output
    assert all(f"told to end {rank}" in output for rank in range(3))
    assert not any(map(runs, agents))
    assert_nothing_left(run_id_in(output))


def test_one_ctrl_c_ends_the_workers_of_all_hosts_in_order(
    hosts: ThreeHosts, tmp_path: Path, started: Launchers
) -> None:
    started.append(job := hosts.launch(tmp_path, "-c", str(cluster_file(tmp_path, HOOK + TOLD + TRAINS))))
    assert_ctrl_c_ends_in_order(job)


def test_a_second_ctrl_c_kills_on_all_hosts(hosts: ThreeHosts, tmp_path: Path, started: Launchers) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    started.append(job := hosts.launch(tmp_path, "-c", str(cluster_file(tmp_path, HOOK + stubborn + TRAINS))))
    seen = read_until_all_train(job)
    job.send_signal(signal.SIGINT)
    seen += read_until(job, "a second one kills")
    job.send_signal(signal.SIGINT)
    output = ends(job, 130, seen, limit_s=18)  # less than the grace after the first
    assert_nothing_left(run_id_in(output))


def test_ctrl_c_while_a_host_does_not_answer(hosts: ThreeHosts, tmp_path: Path, started: Launchers) -> None:
    hosts.configure("Host node-3\n  ConnectTimeout 25\n")
    try:
        with hosts.switched_off("node-3", seen_from=HOSTS[0]):
            started.append(job := hosts.launch(tmp_path, "-c", str(cluster_file(tmp_path, HOOK + TRAINS))))
            seen = read_until(job, "run folder")
            wait_for(lambda: set(ssh_clients(job)) >= {"node-3"}, "ssh")
            job.send_signal(signal.SIGINT)
            output = ends(job, 130, seen, limit_s=20)  # before ssh gives up
    finally:
        hosts.configure("")
    assert "training" not in output
    assert_nothing_left(run_id_in(output))


def test_a_killed_launcher_leaves_nothing_on_any_host(hosts: ThreeHosts, tmp_path: Path, started: Launchers) -> None:
    started.append(job := hosts.launch(tmp_path, "-c", str(cluster_file(tmp_path, HOOK + TRAINS))))
    run_id = run_id_in(read_until_all_train(job))
    rest = {*agents_of(run_id), *ssh_clients(job).values()}
    assert len(rest) == 3 + 2
    job.kill()
    gone_within(run_id, 10.0, rest)


@pytest.mark.parametrize(
    ("killed", "reason"),
    [("ssh", "was killed by SIGKILL"), ("agent", "ended with exit code 255; its agent was killed there")],
)
def test_a_killed_end_of_ssh_ends_the_job_and_names_the_host(
    hosts: ThreeHosts, tmp_path: Path, started: Launchers, killed: str, reason: str
) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    started.append(job := hosts.launch(tmp_path, "-c", str(cluster_file(tmp_path, HOOK + stubborn + TRAINS))))
    seen = read_until_all_train(job)
    agents = agents_of(run_id_in(seen), "node-3")
    (victim,) = [ssh_clients(job)["node-3"]] if killed == "ssh" else agents
    os.kill(victim, signal.SIGKILL)
    output = ends(job, 4, seen, limit_s=18)  # less than the grace of an orderly end
    assert f"error: host node-3 is lost: ssh to root@10.77.0.3 port 22 {reason}" in output
    assert "(it ran worker-2)" in output
    gone_within(run_id_in(output), 10.0, agents)


WRONG = {
    "unknown-name": (
        {"nowhere": None},
        "",
        "host nowhere: ssh to root@nowhere port 22 ended with exit code 255 (ssh: Could not resolve hostname nowhere:",
        "give its address in cluster.hosts, or HostName for nowhere in ~/.ssh/config",
    ),
    "no-sshd": (
        {"node-2": "10.77.0.2"},
        "Host node-2\n  Port 2022\n",
        "host node-2: ssh to root@10.77.0.2 port 2022 ended with exit code 255 (ssh: connect to host 10.77.0.2",
        "Connection refused); start sshd there, or give its port for node-2 in ~/.ssh/config",
    ),
    "unknown-key": (
        {"node-2": "10.77.0.2"},
        "Host node-2\n  UserKnownHostsFile /dev/null\n",
        "host node-2: ssh to root@10.77.0.2 port 22 ended with exit code 255 (",
        "Host key verification failed.); log in once by `ssh -oHostName=10.77.0.2 node-2`, and compare",
    ),
    "no-permission": (
        {"node-2": "10.77.0.2"},
        "Host node-2\n  User nobody\n",
        "host node-2: ssh to nobody@10.77.0.2 port 22 ended with exit code 255 (",
        "`ssh -oHostName=10.77.0.2 node-2` must ask for nothing: run ssh-copy-id ",
    ),
    "wrong-config": (
        {"node-2": "10.77.0.2"},
        "Host node-2\n  Prot 2022\n",
        "host node-2: ssh cannot read its configuration: ",
        "Bad configuration option: prot",
    ),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_why_a_host_cannot_be_reached(hosts: ThreeHosts, tmp_path: Path, started: Launchers, wrong: str) -> None:
    named, config, reason, advice = WRONG[wrong]
    file = cluster_file(tmp_path, HOOK + TRAINS, {"node-1": "10.77.0.1", **named})
    hosts.configure(config)
    try:
        started.append(job := hosts.launch(tmp_path, "-c", str(file)))
        output = ends(job, 3)
    finally:
        hosts.configure("")
    assert f"error: {reason}" in output
    assert advice in output
    assert "training" not in output
    assert_nothing_left(run_id_in(output))
