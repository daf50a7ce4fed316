"""An elastic job over three hosts, with encrypted calls: workers are killed, leave and enter, and a host is lost whole.

The host comes back, and all end with the result of one process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.testbed import Bed, Link, permitted
from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.elastic_story import PLAIN, Story
from tests.launching import assert_nothing_left, dynamix, run_id_in, wait_for

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(permitted() is not None, reason=f"no test bed: {permitted()}"),
]
EXACT = PLAIN.replace("import torch\n", "import torch\ntorch.set_default_dtype(torch.float64)\n")
# Worker 1 is killed once. All train until there were four for a while after host c was lost, with workers 2 and 3.
FAULT = """\
first = os.environ["DYNAMIX_STARTS"] == "0"
whole = 0
lost = not first and os.environ["DYNAMIX_HOST"] == "c"
def attached():
    assert os.path.isdir(os.environ["DYNAMIX_TLS"]), "calls are encrypted"
def fault(rank, iteration):
    if first and (rank, iteration) == (1, 20):
        while not run._session.may_leave:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
def stepped(present):
    global whole, lost
    lost = lost or present == [0, 1]
    whole = whole + 1 if lost and len(present) == 4 else 0
    time.sleep(0.02)  # a longer training is no better test
def enough():
    return whole >= 10
"""
# The command that enters a host, while it is switched on.
WHILE_ON = ("sh", "-c", 'test -e on && exec "$0" "$@"; echo "the host is off" >&2; exit 1')


def test_a_host_is_lost_whole_and_comes_back(tmp_path: Path) -> None:
    on = tmp_path / "on"
    on.touch()
    with Bed({name: Link() for name in "abc"}) as bed:
        hosts = {
            name: (f"{{address: {bed.address(name)}, slots: {slots}}}", (*WHILE_ON, *bed.inside(name)))
            for name, slots in (("a", 1), ("b", 1), ("c", 2))
        }
        servers = "[{host: a}, {host: b}]"
        at = {"hosts": hosts, "on": bed.inside("a")}
        story = Story(tmp_path, None, FAULT, EXACT, elastic=", restarts: 1", servers=servers, **at)
        job = story.launch()

        def there(*ranks: int) -> None:
            def seen() -> bool:
                sums = story.sums(0)
                return (bool(sums) and sums[-1]["present"] == [*ranks]) or job.poll() is not None

            wait_for(seen, f"sums of {ranks}", limit_s=90)
            assert job.poll() is None, job.communicate()[0]

        try:
            there(0, 2, 3)
            leaving = dynamix("leave", "2", cwd=tmp_path)
            told, _ = leaving.communicate(timeout=60)
            assert leaving.returncode == 0, told
            there(0, 1, 3)
            on.unlink()
            bed.crash("c")
            there(0, 1)
            asking = dynamix("join", "3", cwd=tmp_path)
            told, _ = asking.communicate(timeout=60)
            assert asking.returncode == 3, told
            assert "worker 3: its host c is not back" in told and "the host is off" in told
            bed.plug("c")
            on.touch()
            both = [dynamix("join", rank, cwd=tmp_path) for rank in ("2", "3")]
            for rank, asking in zip((2, 3), both, strict=True):
                told, _ = asking.communicate(timeout=90)
                assert asking.returncode == 0 and told.startswith(f"worker {rank} has entered; "), told
            output, _ = job.communicate(timeout=90)
        finally:
            if job.poll() is None:
                job.kill()  # what it has started on the hosts ends with the bed
                job.communicate()
        folder = RunFolder((tmp_path / "runs" / "latest").resolve())
        assert job.returncode == 0, output
        assert_nothing_left(run_id_in(folder.path.name))
    story.check([0, 1, 2, 3])
    story.check_epochs(0)
    sums = story.sums(0)
    for rank in (1, 2, 3):
        told = story.sums(rank)
        assert told == sums[-len(told) :], "from its entry on a newcomer sees the same sums"
    summary = json.loads(folder.summary_json.read_text())
    assert summary["reason"] == "all workers finished"
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    lost = [one.split(",")[0].split(": ")[1] for one in summary["losses"]]
    assert lost == ["worker 1 lost", "worker 3 lost"] and len(summary["departures"]) == 1
    entered = sorted(one.split(": ")[1] for one in summary["arrivals"])
    assert entered in (
        ["worker 1 entered", "worker 2 entered", "worker 3 entered"],
        ["worker 1 entered", "workers 2, 3 entered"],
    )
