"""Workers that give no sign of life though their connections stay: real processes that are stopped, and a busy one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from dynamix_ps.errors import PeerLostError
from tests.integration.membership.elastic_story import Story
from tests.launching import kill_all, run_id_in, wait_for

pytestmark = pytest.mark.timeout(240)

LEASE_S = 2.0
BUSY_IN, FIRST_IN, SECOND_IN, ITERATIONS = 10, 20, 30, 40
# Worker 1 holds the interpreter for longer than its lease: none of its threads runs but those of the data plane.
# Workers 2 and 3 are stopped, the second one for ever. Before that the others wait for the end of the first one.
FAULT = f"""\
import ctypes
def stop(rank):
    with open(f"stopped-{{rank}}.new", "w") as out:
        out.write(str(os.getpid()))
    os.rename(f"stopped-{{rank}}.new", f"stopped-{{rank}}")
    os.kill(os.getpid(), signal.SIGSTOP)
def fault(rank, iteration):
    if (rank, iteration) == (1, {BUSY_IN}):
        ctypes.PyDLL(None).sleep({int(2 * LEASE_S)})
    if (rank, iteration) in ((2, {FIRST_IN}), (3, {SECOND_IN})):
        stop(rank)
    while rank == 0 and iteration == {SECOND_IN - 1} and not os.path.exists("ended"):
        time.sleep(0.02)
"""


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_who_is_stopped_is_lost_and_who_is_busy_is_not(comm: str, tmp_path: Path) -> None:
    story = Story(tmp_path, ITERATIONS, FAULT, keys=f"timeouts: {{rpc_s: 1.0, lease_s: {LEASE_S}}}\n", comm=comm)
    job = story.launch()
    try:
        wait_for((tmp_path / "stopped-2").exists, "worker 2 to be stopped", 120)
        wait_for(lambda: len(story.sums(0)) > FIRST_IN, "the others to go on", 60)
        pid = int((tmp_path / "stopped-2").read_text())
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "worker 2 to end", 60)
        (tmp_path / "ended").touch()
        output, _ = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            job.kill()
            kill_all(run_id_in(story.record.path.name))
    assert job.returncode == 0, output
    present = [one["present"] for one in story.sums(0)]
    assert present == [[0, 1, 2, 3]] * FIRST_IN + [[0, 1, 3]] * 10 + [[0, 1]] * (ITERATIONS - SECOND_IN)
    story.check([0, 1])
    told = r"error: .*worker 2 \([\w-]+\) (counts as lost: its lease ran out|was replaced)"
    assert re.search(told, output), output
    summary = story.summary()
    # it may have counted the iteration in which it was stopped
    ended = rf"worker-2 ended with exit code {PeerLostError.exit_code} at iteration ({FIRST_IN}|{FIRST_IN + 1})\b"
    assert re.match(f"2 of 4 workers finished: {ended}", summary["reason"]), summary["reason"]
    assert f"worker-3 was killed by SIGKILL at iteration {SECOND_IN}" in summary["reason"]
    story.assert_nothing_left()
