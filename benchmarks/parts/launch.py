"""Seconds from the command to the first iteration on several hosts, by ssh: `dynamix launch` beside torchrun.

    python -m benchmarks.parts.launch --json FILE

Hosts are network namespaces with a real sshd each; the first host launches.

    starts  a worker per host, which trains with torch over BytePS. `dynamix launch` and torchrun take turns; a loop
            over ssh starts torchrun on the other hosts, as one does by hand, and its workers use gloo. The time ends
            when the last worker has made its first step. `plain` has mode: off, so that both ways do the same;
            `adapting` has the default, with arbitrator, certificates and a network probe per host, each of which
            compiles its programs on the cores that all hosts share here. Ratios are those of medians; at most
            RATIO_LIMIT.
    many    64 workers on 8 hosts, which train nothing and do not load torch. The time ends when the last one runs; at
            most MANY_LIMIT_S.
    table   `dynamix doctor --hosts`, with all hosts on and with one that is off; at most TABLE_LIMIT_S.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.testbed import Bed, Link
from benchmarks.testbed.commands import run
from benchmarks.testbed.ssh_hosts import SshHosts, unavailable

RATIO_LIMIT, MANY_LIMIT_S, TABLE_LIMIT_S = 1.5, 30.0, 10.0
HOSTS = (3, 8)
MANY = (8, 64)  # hosts, workers
WAYS = ("plain", "adapting", "torchrun")
_LIMIT_S = 120.0
_PORT = 29_400
_ROOT = Path(__file__).resolve().parents[2]
_NOBODY = "02:00:00:00:00:01"  # hardware address that no host has


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each kind")
    parser.add_argument("--hosts", type=int, nargs="*", default=HOSTS, help="numbers of hosts")
    parser.add_argument("--parts", nargs="+", default=("starts", "many", "table"), help="which parts (default: all)")
    args = parser.parse_args()
    if reason := unavailable():
        sys.exit(f"error: {reason}")
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    for part in args.parts:
        figures[part] = PARTS[part](args.hosts, args.rounds)
        if args.json:
            args.json.write_text(json.dumps(figures, indent=2) + "\n")
    show(figures)


def show(figures: dict[str, Any]) -> None:
    """A line per number of hosts and part."""
    table = Table(title="seconds, by ssh")
    for column in ("hosts", "what", "seconds", "limit"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in figures.get("starts", ()):
        for way in WAYS:
            what = f"first iteration, {way}, {row[f'{way}_ratio']:.2f} of torchrun"
            table.add_row(str(row["hosts"]), what, f"{row[f'{way}_s']:.2f}", f"ratio {RATIO_LIMIT}")
    for row in figures.get("many", ()):
        table.add_row(str(row["hosts"]), f"{row['workers']} workers run", f"{row['s']:.2f}", f"{MANY_LIMIT_S:g}")
    for row in figures.get("table", ()):
        what = f"table of hosts, {row['off']} off"
        table.add_row(str(row["hosts"]), what, f"{row['s']:.2f}", f"{TABLE_LIMIT_S:g}")
    Console().print(table)


class Hosts:
    """Hosts that reach each other by ssh. `folder`: for everything of theirs."""

    def __init__(self, bed: Bed, names: Sequence[str], folder: Path) -> None:
        self.bed, self.names, self.folder = bed, names, folder
        keys = folder / "ssh"
        keys.mkdir()
        environ = {**os.environ, "PYTHONPATH": str(_ROOT), "GLOO_SOCKET_IFNAME": "eth0"}
        self._environ = SshHosts(bed, names, keys).environment(environ)

    def start(self, command: Sequence[str], cwd: Path) -> subprocess.Popen[bytes]:
        """A command on the first host."""
        words = (*self.bed.inside(self.names[0]), *command)
        return subprocess.Popen(words, cwd=cwd, env=self._environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def cluster_file(self, folder: Path, workers: int, **keys: object) -> Path:
        """A job with so many workers, as many on each host."""
        slots = workers // len(self.names)
        hosts = {name: {"address": self.bed.address(name), "slots": slots} for name in self.names}
        cluster = {"hosts": hosts, "workers": [{}] * workers}
        file = folder / "cluster.yaml"
        file.write_text(json.dumps({"name": "starts", "run_dir": str(folder / "runs"), "cluster": cluster, **keys}))
        return file


@contextmanager
def hosts_up(number: int) -> Iterator[Hosts]:
    names = [f"node-{place}" for place in range(1, number + 1)]
    with tempfile.TemporaryDirectory(prefix="dynamix-starts-") as folder, Bed({name: Link() for name in names}) as bed:
        yield Hosts(bed, names, Path(folder))


def starts(numbers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """All ways by turns, for each number of hosts."""
    rows = []
    for number in numbers:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        with hosts_up(number) as hosts:
            for place in range(rounds):
                for way in (*WAYS[place % 3 :], *WAYS[: place % 3]):
                    print(f"{number} hosts, start {place + 1} of {rounds}: {way}", file=sys.stderr, flush=True)
                    folder = hosts.folder / f"{way}-{place}"
                    folder.mkdir()
                    seconds[way].append(first_step_s(hosts, COMMANDS[way](hosts, folder), folder))
        medians = {way: statistics.median(seconds[way]) for way in WAYS}
        rows.append({
            "hosts": number,
            **{f"{way}_ratio": medians[way] / medians["torchrun"] for way in WAYS},
            **{f"{way}_s": medians[way] for way in WAYS},
            **{f"{way}_starts_s": seconds[way] for way in WAYS},
        })  # fmt: skip
    return rows


def many(numbers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Many workers that train nothing."""
    number, workers = MANY
    seconds = []
    with hosts_up(number) as hosts:
        for place in range(rounds):
            print(f"{workers} workers, start {place + 1} of {rounds}", file=sys.stderr, flush=True)
            folder = hosts.folder / f"many-{place}"
            folder.mkdir()
            file = hosts.cluster_file(folder, workers, comm="gloo")
            seconds.append(first_step_s(hosts, [launch(file, "light", folder)], folder))
    return [{"hosts": number, "workers": workers, "s": statistics.median(seconds), "starts_s": seconds}]


def tables(numbers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """What `dynamix doctor` takes, for each number of hosts, with none and with one that is off."""
    rows = []
    for number in numbers:
        with hosts_up(number) as hosts:
            file = hosts.cluster_file(hosts.folder, number)
            command = (sys.executable, "-m", "dynamix_ps.cli.main", "doctor", "--hosts", "-c", str(file))
            for off in (0, 1):
                if off:
                    switch_off(hosts, hosts.names[-1])
                seconds = []
                for place in range(rounds):
                    print(f"{number} hosts, {off} off, table {place + 1} of {rounds}", file=sys.stderr, flush=True)
                    began_s = time.monotonic()
                    code = hosts.start(command, hosts.folder).wait(_LIMIT_S)
                    seconds.append(time.monotonic() - began_s)
                    if code != (3 if off else 0):
                        sys.exit(f"error: dynamix doctor ended with {code}")
                rows.append({"hosts": number, "off": off, "s": statistics.median(seconds), "tables_s": seconds})
    return rows


PARTS = {"starts": starts, "many": many, "table": tables}


def switch_off(hosts: Hosts, name: str) -> None:
    """Packets to a host are lost, also those of the first host, which still believes that it is there."""
    neighbour = ("ip", "-n", hosts.bed.namespace(hosts.names[0]), "neigh", "replace", hosts.bed.address(name))
    run(*neighbour, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
    hosts.bed.unplug(name)


def first_step_s(hosts: Hosts, commands: Sequence[Sequence[str]], folder: Path) -> float:
    """Run a job to its end; returns the seconds until its last worker had made its first step."""
    began_s = time.time()
    running = [hosts.start(command, folder) for command in commands]
    try:
        codes = [process.wait(_LIMIT_S) for process in running]
    finally:
        for process in running:
            process.kill()
    if any(codes):
        sys.exit(f"error: {folder.name} ended with {codes}")
    return max(float(file.read_text()) for file in folder.glob("rank-*")) - began_s


def launch(file: Path, way: str, folder: Path) -> tuple[str, ...]:
    """`dynamix launch` for a cluster file."""
    command = (sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", str(file), "--")
    return (*command, "python", *worker(way, folder))


def worker(way: str, folder: Path) -> tuple[str, ...]:
    return ("-m", "benchmarks.parts.processes.launch_worker", way, str(folder))


def by_dynamix(hosts: Hosts, folder: Path, mode: str) -> list[tuple[str, ...]]:
    """The one command for all hosts."""
    return [launch(hosts.cluster_file(folder, len(hosts.names), mode=mode), "dynamix", folder)]


def by_torchrun(hosts: Hosts, folder: Path) -> list[tuple[str, ...]]:
    """One command per host."""
    meeting = ("--master-addr", hosts.bed.address(hosts.names[0]), "--master-port", str(_PORT))
    commands = []
    for rank, name in enumerate(hosts.names):
        size = ("--nnodes", str(len(hosts.names)), "--node-rank", str(rank), "--nproc-per-node", "1")
        command = (sys.executable, "-m", "torch.distributed.run", *size, *meeting, *worker("torchrun", folder))
        environ = ("env", f"PYTHONPATH={_ROOT}", "GLOO_SOCKET_IFNAME=eth0")
        remote = f"cd {shlex.quote(str(folder))} && exec {shlex.join((*environ, *command))}"
        commands.append(command if rank == 0 else ("ssh", "-oBatchMode=yes", hosts.bed.address(name), remote))
    return commands


COMMANDS: dict[str, Callable[[Hosts, Path], list[tuple[str, ...]]]] = {
    "plain": partial(by_dynamix, mode="off"),
    "adapting": partial(by_dynamix, mode="adapt"),
    "torchrun": by_torchrun,
}


if __name__ == "__main__":
    main()
