"""A server that gives no sign of life though its connections stay: a real process, stopped in mid-training."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dynamix_ps.errors import PeerLostError
from tests.integration.membership.elastic_story import KILL_SERVER, SAMPLES, WIDE, Story
from tests.launching import kill_all, run_id_in, wait_for

pytestmark = pytest.mark.timeout(240)

LEASE_S = 2.0
STOPPED_IN, ITERATIONS = 20, 3 * SAMPLES // 24
# Server 1 is stopped. The workers wait for its end before theirs.
FAULT = f"""\
def fault(rank, iteration):
    if (rank, iteration) == (1, {STOPPED_IN}):
        kill_server(1, iteration, signal.SIGSTOP)
    while rank == 0 and iteration == {ITERATIONS - 1} and not os.path.exists("ended"):
        time.sleep(0.02)
"""


def pids_of(run_id: str, role: str) -> list[int]:
    """The processes of a role; none if it has ended."""
    wanted = {f"DYNAMIX_ROLE_NAME={role}".encode(), f"DYNAMIX_RUN_ID={run_id}".encode()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found


def test_a_stopped_server_is_lost_and_ends_when_it_goes_on(tmp_path: Path) -> None:
    keys = f"timeouts: {{rpc_s: 1.0, lease_s: {LEASE_S}}}\n"
    story = Story(tmp_path, ITERATIONS, KILL_SERVER + FAULT, WIDE, keys=keys, servers=3)
    job = story.launch()
    try:
        wait_for(lambda: len(story.sums(0)) > STOPPED_IN, "the others to go on without server 1", 120)
        run_id = run_id_in(story.record.path.name)
        for pid in pids_of(run_id, "server-1"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not pids_of(run_id, "server-1"), "server 1 to end", 60)
        (tmp_path / "ended").touch()
        output, _ = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            job.kill()
            kill_all(run_id_in(story.record.path.name))
    assert job.returncode == 0, output
    sums = story.sums(0)
    assert [one["present"] for one in sums] == [[0, 1, 2, 3]] * ITERATIONS, "no worker is lost, and no sum"
    order = [number for one in sums for number in one["numbers"]]
    assert sorted(order[:SAMPLES]) == list(range(SAMPLES)), "every sample once"
    story.check([0, 1, 2, 3])

    summary = story.summary()
    told = rf"all workers finished; server-1 (ended with exit code {PeerLostError.exit_code}|was killed by SIGKILL)"
    assert re.fullmatch(told, summary["reason"]), summary["reason"]
    assert [loss.split(",")[0] for loss in summary["losses"]] == ["2 of 3 servers: server 1 lost"]
    story.assert_nothing_left()
