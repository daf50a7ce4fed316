"""Who gives no sign of life though its connections stay: a real server and workers that are stopped, and a busy one."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dynamix_ps.errors import PeerLostError
from tests.integration.membership.elastic_story import Story
from tests.launching import kill_all, run_id_in, wait_for

pytestmark = pytest.mark.timeout(240)

LEASE_S = 2.0
BUSY_IN, SERVER_IN, FIRST_IN, SECOND_IN, ITERATIONS = 10, 15, 20, 30, 40
# Worker 1 holds the interpreter for longer than its lease: none of its threads runs but those of the data plane. Then
# it stops server 1, if there is one. Workers 2 and 3 are stopped, the second one for ever. Before that the others wait
# for the end of the first one and of the server.
FAULT = f"""\
import ctypes
def note(name, pids):
    with open(f"{{name}}.new", "w") as out:
        out.write(json.dumps(pids))
    os.rename(f"{{name}}.new", name)
def fault(rank, iteration):
    if (rank, iteration) == (1, {BUSY_IN}):
        ctypes.PyDLL(None).sleep({int(2 * LEASE_S)})
    if (rank, iteration) == (1, {SERVER_IN}):
        note("stopped-server", list(processes("DYNAMIX_ROLE_NAME=server-1")))
        kill_server(1, iteration, signal.SIGSTOP)
    if (rank, iteration) in ((2, {FIRST_IN}), (3, {SECOND_IN})):
        note(f"stopped-{{rank}}", [os.getpid()])
        os.kill(os.getpid(), signal.SIGSTOP)
    while rank == 0 and iteration == {SECOND_IN - 1} and not os.path.exists("ended"):
        time.sleep(0.02)
"""


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_who_is_stopped_is_lost_and_ends_when_it_goes_on_and_who_is_busy_is_not(comm: str, tmp_path: Path) -> None:
    keys = f"timeouts: {{rpc_s: 1.0, lease_s: {LEASE_S}}}\n"
    story = Story(tmp_path, ITERATIONS, FAULT, keys=keys, comm=comm)
    job, files = story.launch(), [tmp_path / "stopped-server", tmp_path / "stopped-2"]
    try:
        gone_on = "the others to go on without worker 2"
        wait_for(lambda: len(story.sums(0)) > FIRST_IN or job.poll() is not None, gone_on, 180)
        stopped = [pid for file in files for pid in json.loads(file.read_text())]
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in stopped), "both to end", 60)
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
    assert re.search(ended, summary["reason"]), summary["reason"]
    assert f"worker-3 was killed by SIGKILL at iteration {SECOND_IN}" in summary["reason"]
    if comm == "byteps":
        ended = rf"server-1 (ended with exit code {PeerLostError.exit_code}|was killed by SIGKILL)"
        assert re.search(ended, summary["reason"]), summary["reason"]
        assert summary["losses"][0].startswith("1 of 2 servers: server 1 lost, ")
    story.assert_nothing_left()
