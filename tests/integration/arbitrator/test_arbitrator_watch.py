"""The supervisor of the arbitrator, with small processes instead of an arbitrator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.launch.job.restarts import RestartBudget
from server_hooks.arbitrator_watch import ArbitratorWatch
from tests.launching import ROOT, environment, wait_for

pytestmark = pytest.mark.timeout(60)


def lines(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def starts(folder: Path) -> list[int]:
    """Pids of all processes that were started so far."""
    file = folder / "starts"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def watch(folder: Path, body: str, **budget: float) -> ArbitratorWatch:
    code = f"import os, signal, sys, time\nopen({str(folder / 'starts')!r}, 'a').write(f'{{os.getpid()}} ')\n{body}"
    return ArbitratorWatch([sys.executable, "-c", code], folder / "watch.jsonl", RestartBudget(**budget))  # type: ignore[arg-type]


def test_a_killed_arbitrator_is_started_again_and_stopped_at_the_end(tmp_path: Path) -> None:
    under_watch = watch(tmp_path, "time.sleep(300)", first_delay_s=0.01)
    under_watch.start()
    wait_for(lambda: len(starts(tmp_path)) == 1, "the first start")
    os.kill(starts(tmp_path)[0], signal.SIGKILL)
    wait_for(lambda: len(starts(tmp_path)) == 2, "the second start")
    under_watch.stop()
    assert [line["kind"] for line in lines(tmp_path / "watch.jsonl")] == ["arbitrator_exit", "arbitrator_restarted"]
    assert lines(tmp_path / "watch.jsonl")[0]["code"] == -9
    assert not Path(f"/proc/{starts(tmp_path)[1]}").exists()


def test_one_that_dies_again_and_again_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    under_watch = watch(tmp_path, "sys.exit(3)", restarts=3, first_delay_s=0.01)
    under_watch.start()
    wait_for(
        lambda: (
            lines(tmp_path / "watch.jsonl")[-1:]
            and lines(tmp_path / "watch.jsonl")[-1]["kind"] == "arbitrator_given_up"
        ),
        "it to be given up",
    )
    under_watch.stop()
    assert len(starts(tmp_path)) == 4
    assert capfd.readouterr().out.count("it is not started again") == 1


def test_its_end_is_orderly_and_killed_only_if_it_must_be(tmp_path: Path) -> None:
    note = f"signal.signal(15, lambda *_: (open({str(tmp_path / 'flushed')!r}, 'w'), sys.exit(0)))\ntime.sleep(300)"
    under_watch = watch(tmp_path, note)
    under_watch.start()
    wait_for(lambda: starts(tmp_path), "the start")
    wait_for(lambda: _catches_term(starts(tmp_path)[0]), "the handler")
    under_watch.stop()
    assert (tmp_path / "flushed").exists()
    assert lines(tmp_path / "watch.jsonl") == []


def test_it_has_one_thread_for_matrix_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "3")  # those of the training beside it, or of its user
    told = tmp_path / "threads"
    count = f"import numpy\nopen({str(told)!r}, 'w').write(str(len(os.listdir('/proc/self/task'))))"
    under_watch = watch(tmp_path, f"{count}\ntime.sleep(300)")
    under_watch.start()
    wait_for(lambda: told.exists() and told.read_text(), "the count")
    under_watch.stop()
    assert told.read_text() == "1"


def test_stop_before_start_starts_nothing(tmp_path: Path) -> None:
    under_watch = watch(tmp_path, "time.sleep(300)")
    under_watch._stopping.set()
    under_watch.start()
    under_watch.stop()
    assert starts(tmp_path) == []


def test_when_its_owner_is_killed_the_arbitrator_is_told_to_end(tmp_path: Path) -> None:
    body = f"import os, time; open({str(tmp_path / 'starts')!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(300)"
    owner = (
        "import sys, time\nfrom pathlib import Path\nfrom server_hooks.arbitrator_watch import ArbitratorWatch\n"
        f"ArbitratorWatch([sys.executable, '-c', {body!r}], Path({str(tmp_path / 'w')!r})).start(); time.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", owner], env=environment(), cwd=ROOT)
    wait_for(lambda: starts(tmp_path), "the start")
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{starts(tmp_path)[0]}").exists(), "the arbitrator to end")


def _catches_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
