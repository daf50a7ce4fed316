"""Cost of the network probe: a BytePS iteration with the probe on against off, interleaved in one run.

    python -m benchmarks.parts.probe --json FILE        (as root)

Scheduler, server and two workers train the demo's CNN on real BytePS on this machine. The benchmark starts and ends
the real probe process in blocks of the same length, in the order off, on, on, off. While the probe runs, all four roles
read their traffic from it as often as in a real run. While it is off, there is no program in the kernel and no reading.
Workers log the time of every iteration; the benchmark uses it to assign iterations to blocks. Iterations that overlap
with a start or an end of the probe belong to no block.

- `slowdown`: mean over pairs of neighbouring blocks of (on - off), divided by the mean iteration with the probe off.
  The figure of a block is its mean, because part of the cost occurs only every few iterations. The TRIM largest and
  smallest differences (interruptions by other programs) are left out. `slowdown_error` is the standard error.
- `probe_cpu`: CPU seconds of the probe process per second, over all blocks with the probe on.
- `kernel_cpu`: CPU seconds per second of its programs in the kernel, which run inside the roles' system calls;
  `events_per_s`: how often they run. The kernel counts both (kernel.bpf_stats_enabled) in a separate last block,
  because counting costs about as much as the programs. `megabytes_per_s` is the traffic in this block, both ways.
- `lost`: connections that the probe leaves out, over the whole run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.parts.processes.comm_worker import BATCH
from benchmarks.parts.processes.roles import WORKERS, Roles
from benchmarks.testbed.byteps_roles import OURS
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.protocol import ProbeSnapshot

BLOCK_S = 2.0
SETTLE_S = 1.5  # for the roles to notice the start or the end of the probe
WARM_UP_S = 5.0
START_LIMIT_S = 60.0
TRAFFIC_S = 10.0
TRIM = 0.1  # of the pairs, on each side
ORDER = (False, True, True, False)
_BPF_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of time (monotonic clock, seconds) in which the probe was on or off."""

    on: bool
    began_s: float
    ended_s: float


class ProbeProcess:
    """The probe as the launcher starts it. Raises SystemExit with its output if it does not start."""

    def __init__(self, path: str) -> None:
        command = [sys.executable, "-m", "dynamix_ps.metrics.network.probe.process", "--socket", path]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith("ready"):
            self._process.wait()
            raise SystemExit(f"the probe is not permitted here: {said}{self._process.stdout.read()}".strip())
        self._source = ProbeSource(path)

    def cpu_s(self) -> float:
        """CPU time of all its threads so far, with nanosecond resolution."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def programs(self) -> tuple[float, int]:
        """(CPU seconds, runs) of its programs in the kernel, counted while bpf_stats_enabled is 1."""
        programs = {}
        for file in Path(f"/proc/{self._process.pid}/fdinfo").iterdir():
            try:
                lines = file.read_text().splitlines()
            except FileNotFoundError:  # closed meanwhile, so no program
                continue
            facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if "run_cnt" in facts:
                programs[facts["prog_id"]] = int(facts["run_time_ns"]), int(facts["run_cnt"])
        return sum(run_ns for run_ns, _ in programs.values()) / 1e9, sum(runs for _, runs in programs.values())

    def snapshot(self) -> ProbeSnapshot:
        """Its data about all roles. Raises SourceError."""
        try:
            return self._source.ask("all")
        finally:
            self._source.close()

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate()


def measure(folder: Path, pairs: int, console: Console) -> dict[str, Any]:
    """All figures of the benchmark."""
    path = str(folder / "probe.sock")
    role = ["-m", "benchmarks.parts.processes.probe_role", "--socket", path, "--log", str(folder)]
    roles = Roles(folder, OURS, role, role)
    probe: ProbeProcess | None = None
    blocks: list[Block] = []
    lost, cpu_s, on_s = 0, 0.0, 0.0
    try:
        wait_for_training(roles, folder)
        time.sleep(WARM_UP_S)
        for number in range(2 * pairs):
            on = ORDER[number % len(ORDER)]
            if on and probe is None:
                probe = ProbeProcess(path)
                time.sleep(SETTLE_S)
            elif not on and probe is not None:
                probe.end()
                probe = None
                time.sleep(SETTLE_S)
            used_s, began_s = probe.cpu_s() if probe else 0.0, time.monotonic()
            time.sleep(BLOCK_S)
            blocks.append(Block(on, began_s, time.monotonic()))
            if probe:
                cpu_s += probe.cpu_s() - used_s
                on_s += blocks[-1].ended_s - began_s
                lost = max(lost, check(probe.snapshot()))
            if number % 10 == 9:
                console.print(f"{(number + 1) // 2} of {pairs} pairs", highlight=False)
        probe = probe or ProbeProcess(path)
        time.sleep(SETTLE_S)
        figures = traffic(probe)
        lost = max(lost, check(probe.snapshot()))
    finally:
        if probe is not None:
            probe.end()
        roles.end()
    figures |= {"lost": lost, "probe_cpu": cpu_s / on_s}
    return slowdown(blocks, [read_log(folder / f"worker-{rank}") for rank in range(WORKERS)]) | figures


def wait_for_training(roles: Roles, folder: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    logs = [folder / f"worker-{rank}" for rank in range(WORKERS)]
    while not all(log.exists() and log.stat().st_size for log in logs):
        ended = [name for name, process in roles.processes.items() if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            said = "".join(file.read_text()[-2000:] for file in sorted(folder.glob("*.log")))
            raise SystemExit(f"the workers do not train (ended: {ended}):\n{said}")
        time.sleep(0.1)


def check(snapshot: ProbeSnapshot) -> int:
    """Connections lost so far. Raises SystemExit unless every role reads its traffic."""
    expected = WORKERS + 2
    readers = {process.pid for process in snapshot.processes} - {os.getpid()}
    if len(readers) != expected:
        raise SystemExit(f"{len(readers)} roles read from the probe, expected {expected}")
    return snapshot.lost


def traffic(probe: ProbeProcess) -> dict[str, Any]:
    """Work and cost of the programs in the kernel."""
    with bpf_stats():
        before, (cpu_before_s, runs_before), began_s = carried(probe.snapshot()), probe.programs(), time.monotonic()
        time.sleep(TRAFFIC_S)
        after, (cpu_s, runs), passed_s = carried(probe.snapshot()), probe.programs(), time.monotonic() - began_s
    return {
        "megabytes_per_s": (after - before) / passed_s / 1e6,
        "events_per_s": (runs - runs_before) / passed_s,
        "kernel_cpu": (cpu_s - cpu_before_s) / passed_s,
    }


def carried(snapshot: ProbeSnapshot) -> float:
    """Bytes that all roles have sent."""
    return math.fsum(connection.bytes_out for connection in snapshot.connections)


@contextmanager
def bpf_stats() -> Iterator[None]:
    """Let the kernel count the runs of all its programs."""
    before = _BPF_STATS.read_text()
    _BPF_STATS.write_text("1")
    try:
        yield
    finally:
        _BPF_STATS.write_text(before)


def read_log(file: Path) -> list[tuple[float, float]]:
    """(end, duration) of every iteration; the last line may be incomplete, because its writer is killed."""
    lines = file.read_text().split("\n")[:-1]
    return [(float(ended), float(duration)) for ended, duration in (line.split() for line in lines)]


def slowdown(blocks: list[Block], logs: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """The difference between blocks with the probe on and off. Pure."""
    means = [block_mean(block, logs) for block in blocks]
    pairs = []
    for first in range(0, len(blocks) - 1, 2):
        by_state = {blocks[index].on: means[index] for index in (first, first + 1)}
        pairs.append((by_state[False], by_state[True] - by_state[False]))
    kept = sorted(pairs, key=lambda pair: pair[1])
    trimmed = int(len(kept) * TRIM)
    kept = kept[trimmed : len(kept) - trimmed]
    off_s, difference_s = map(statistics.fmean, zip(*kept, strict=True))
    error_s = statistics.stdev(pair[1] for pair in kept) / math.sqrt(len(kept)) if len(kept) > 1 else math.nan
    return {
        "slowdown": difference_s / off_s,
        "slowdown_error": error_s / off_s,
        "off_ms": off_s * 1e3,
        "on_ms": (off_s + difference_s) * 1e3,
        "pairs_ms": [[off * 1e3, difference * 1e3] for off, difference in pairs],
    }


def block_mean(block: Block, logs: list[list[tuple[float, float]]]) -> float:
    """Mean seconds of the iterations of all workers that lie inside a block."""
    return statistics.fmean(
        duration
        for log in logs
        for ended, duration in log
        if block.began_s <= ended - duration and ended <= block.ended_s
    )


def table(figures: dict[str, Any]) -> Table:
    result = Table(title=f"the network probe, CNN, {WORKERS} workers on {figures['cores']} cores, batch {BATCH} each")
    for column in ("figure", "value", "bar"):
        result.add_column(column, justify="left" if column == "figure" else "right")
    result.add_row("iteration, probe off", f"{figures['off_ms']:.3f} ms", "")
    result.add_row("iteration, probe on", f"{figures['on_ms']:.3f} ms", "")
    result.add_row("slow-down", f"{figures['slowdown']:+.2%} ± {figures['slowdown_error']:.2%}", "< 1 %")
    result.add_row("CPU of the probe", f"{figures['probe_cpu']:.2%} of a core", "< 1 %")
    result.add_row("CPU of its programs in the kernel", f"{figures['kernel_cpu']:.2%} of a core", "")
    result.add_row("events", f"{figures['events_per_s']:,.0f} per s", "")
    result.add_row("traffic", f"{figures['megabytes_per_s']:.1f} MB/s", "")
    result.add_row("lost", f"{figures['lost']}", "0")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks, about 8 s each")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that roles and files are removed
    with tempfile.TemporaryDirectory(prefix="dx-probe-") as folder:
        figures = measure(Path(folder), args.pairs, Console(stderr=True))
    figures |= {"pairs": args.pairs, "block_s": BLOCK_S, "batch": BATCH, "workers": WORKERS, "cores": os.cpu_count()}
    Console().print(table(figures))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
