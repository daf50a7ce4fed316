"""Which sources of network metrics work here; for the others the reason and what to do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps import own_process
from dynamix_ps.metrics.network.connection import NetworkSource, SourceError
from dynamix_ps.metrics.network.probe.process import ebpf_collector
from dynamix_ps.metrics.network.procfs import ProcfsSource
from dynamix_ps.metrics.network.sockdiag import SockDiagSource

_LOAD_LIMIT_S = 60
_TRACEFS = Path("/sys/kernel/tracing/events")


@dataclass(frozen=True, slots=True)
class Level:
    """One source, or a requirement that is checked. If a source does not work, the next one takes over."""

    name: str
    usable: bool
    reason: str  # for usable sources: what they provide
    fix: str = ""


def check_levels() -> tuple[Level, ...]:
    """Open every source, best first; takes about a second. Never raises."""
    return (
        _ebpf(),
        _made("sockdiag", SockDiagSource, "own connections by sock_diag, no privilege needed"),
        _made("procfs", ProcfsSource, "counters of the whole network namespace, no round trip, no queues"),
        Level("tracefs", True, f"{'there' if _TRACEFS.exists() else 'not mounted'}; not needed by raw tracepoints"),
        Level("kernel headers", True, "not needed: the package has its own, and the kernel provides its types"),
    )


def _ebpf() -> Level:
    """Load and attach in a separate process: compiler libraries are large, and may crash."""
    try:
        done = subprocess.run(
            own_process.command("dynamix_ps.metrics.network.sources"),
            capture_output=True,
            text=True,
            timeout=_LOAD_LIMIT_S,
            check=False,
        )
        problem = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Level("ebpf", False, f"loading the programs did not end within {_LOAD_LIMIT_S} s")
    except OSError as error:
        return Level("ebpf", False, f"no process could be started to try it: {error}")
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        return Level("ebpf", False, f"loading the programs ended with {last}")
    if problem:
        return Level("ebpf", False, problem["reason"], problem["fix"])
    return Level("ebpf", True, "programs load and attach")


def _made(name: str, make: Callable[[], NetworkSource], gives: str) -> Level:
    try:
        make().close()
    except SourceError as error:
        return Level(name, False, str(error), error.fix)
    return Level(name, True, gives)


def _try_ebpf() -> dict[str, str]:
    """Reason and fix of the problem; empty if eBPF works."""
    try:
        ebpf_collector().close()
    except SourceError as error:
        return {"reason": str(error), "fix": error.fix}
    return {}


if __name__ == "__main__":
    print(json.dumps(_try_ebpf()))
