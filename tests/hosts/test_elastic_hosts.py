"""An elastic job over three hosts, with encrypted calls and a launcher outside of them, of which a host is lost whole.

All end with the result of one process.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed import Bed, Link, permitted
from dynamix_ps.launch.cleanup.release import release_stale
from tests.hosts.noticed_host import UNTIL_ONE_IS_GONE
from tests.integration.membership.elastic_story import DOUBLE, Story
from tests.launching import dynamix, ends, launch_by, wait_for

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(permitted() is not None, reason=f"no test bed: {permitted()}"),
]
SLOTS = {"a": 1, "b": 1, "c": 2}
SPARE = "d"  # a host that the cluster file does not name
# The command that enters a host, while it is switched on.
WHILE_ON = ("sh", "-c", 'test -e on && exec "$0" "$@"; echo "the host is off" >&2; exit 1')


@dataclass
class ElasticJob:
    """A job of four workers: one on host a, one on host b, and two on host c."""

    story: Story
    bed: Bed
    process: subprocess.Popen[str]

    def there(self, *ranks: int) -> None:
        """Wait for a sum of these workers."""

        def seen() -> bool:
            sums = self.story.sums(0)
            return (len(sums) > 5 and sums[-1]["present"] == [*ranks]) or self.process.poll() is not None

        wait_for(seen, f"sums of {ranks}", limit_s=90)
        assert self.process.poll() is None, self.process.communicate()[0]

    def switch_off(self) -> None:
        """Host c loses its cable and all its processes."""
        (self.story.folder / "on").unlink()
        self.bed.crash("c")

    def switch_on(self) -> None:
        self.bed.plug("c")
        (self.story.folder / "on").touch()

    def summary(self) -> dict[str, Any]:
        """Of a job that has come to its end."""
        ends(self.process, 0, limit_s=90)
        release_stale()  # what a host has left that was switched off, as the next job does on it
        self.story.assert_nothing_left()
        return self.story.summary()


@contextmanager
def elastic_job(folder: Path, fault: str, **options: Any) -> Iterator[ElasticJob]:
    (folder / "on").touch()
    with Bed({name: Link() for name in (*SLOTS, SPARE)}) as bed:
        hosts = {
            name: (f"{{address: {bed.address(name)}, slots: {slots}}}", (*WHILE_ON, *bed.inside(name)))
            for name, slots in SLOTS.items()
        }
        story = Story(folder, None, fault, DOUBLE, hosts=hosts, **options)
        story.write()
        commands = {name: command for name, (_, command) in hosts.items()} | {SPARE: bed.inside(SPARE)}
        process = launch_by(commands, folder, "cluster.yaml")
        try:
            yield ElasticJob(story, bed, process)
        finally:
            if process.poll() is None:
                process.kill()  # what it has started on the hosts ends with the bed
                process.communicate()


# Worker 1 is killed once. All train until there were four for a while after host c was lost.
COME_BACK = """\
first = os.environ["DYNAMIX_STARTS"] == "0"
whole = 0
lost = not first and os.environ["DYNAMIX_HOST"] in "cd"
def attached():
    assert os.path.isdir(os.environ["DYNAMIX_TLS"]), "calls are encrypted"
def fault(rank, iteration):
    if first and (rank, iteration) == (1, 20):
        while not run.training.session.may_leave:
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


def test_a_host_is_lost_whole_and_comes_back(tmp_path: Path) -> None:
    """Before, a worker is killed and started again, and another one leaves."""
    options = {"elastic": ", restarts: 1", "servers": "[{host: a}, {host: b}]"}
    with elastic_job(tmp_path, COME_BACK, **options) as job:
        job.there(0, 2, 3)
        leaving = dynamix("leave", "2", cwd=tmp_path)
        told = ends(leaving, 0)
        job.there(0, 1, 3)
        job.switch_off()
        job.there(0, 1)
        asking = dynamix("join", "3", cwd=tmp_path)
        told = ends(asking, 3)
        assert "worker 3: its host c is not back" in told and "the host is off" in told
        job.switch_on()
        both = [dynamix("join", rank, cwd=tmp_path) for rank in ("2", "3")]
        for rank, asking in zip((2, 3), both, strict=True):
            told, _ = asking.communicate(timeout=90)
            assert asking.returncode == 0 and told.startswith(f"worker {rank} has entered; "), told
        summary = job.summary()
    story = job.story
    story.check([0, 1, 2, 3])
    story.check_epochs(0)
    sums = story.sums(0)
    for rank in (1, 2, 3):
        own = story.sums(rank)
        assert own == sums[-len(own) :], "from its entry on a newcomer sees the same sums"
    assert summary["reason"] == "all workers finished"
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    lost = [one.split(",")[0].split(": ")[1] for one in summary["losses"]]
    assert lost == ["worker 1 lost", "worker 3 lost"] and len(summary["departures"]) == 1
    entered = [one.split(": ")[1] for one in summary["arrivals"]]
    assert sorted(entered) in (
        ["worker 1 entered", "worker 2 entered", "worker 3 entered"],
        ["worker 1 entered", "workers 2, 3 entered"],
    )


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_another_host_takes_the_workers_of_one_that_is_lost(tmp_path: Path, comm: str) -> None:
    nobody_else = COME_BACK.replace("(1, 20)", "(None, 20)")
    with elastic_job(tmp_path, nobody_else, servers="[{host: a}, {host: b}]", comm=comm) as job:
        job.there(0, 1, 2, 3)
        job.switch_off()
        job.there(0, 1)
        told = ends(dynamix("join", "2", "--host", SPARE, "--slots", "2", cwd=tmp_path), 0, limit_s=60)
        assert told.startswith("worker 2 has entered; ")
        told = ends(dynamix("join", "3", cwd=tmp_path), 0, limit_s=60)
        assert told.startswith("worker 3 has entered; ")
        summary = job.summary()
    job.story.check([0, 1, 2, 3])
    job.story.check_epochs(0)
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    assert [row["host"] for row in summary["per_worker"]] == ["a", "b", SPARE, SPARE]


def test_a_ring_goes_on_without_a_host(tmp_path: Path) -> None:
    with elastic_job(tmp_path, UNTIL_ONE_IS_GONE, comm="gloo") as job:
        job.there(0, 1, 2, 3)
        job.switch_off()
        summary = job.summary()
    job.story.check([0, 1])
    job.story.check_epochs(0)
    finished = "2 of 4 workers finished: "
    assert summary["reason"].startswith(finished) and "worker-2 was lost with host c at iteration" in summary["reason"]
    assert [row["state"] for row in summary["per_worker"]] == ["finished", "finished", "lost", "lost"]


TRAIN_ON = """\
def fault(rank, iteration): ...
def stepped(present):
    time.sleep(0.01)
def enough():
    return False
"""


def test_stopping_a_job_over_several_hosts_is_no_story_of_losses(tmp_path: Path) -> None:
    """Hosts that have run folders of their own hear that the job ends before SIGTERM comes to their workers."""
    options = {"servers": "[{host: a}, {host: b}]", "keys": "checkpoint_every: 10\n"}
    with elastic_job(tmp_path, TRAIN_ON, **options) as job:
        job.there(0, 1, 2, 3)
        job.process.send_signal(signal.SIGINT)
        output = ends(job.process, 130)
    job.story.assert_nothing_left()
    assert [rank for rank in range(4) if f"warning: worker {rank} ends by SIGTERM after" not in output] == []
    folder, summary = job.story.record, job.story.summary()
    for text in (output, folder.summary_md.read_text()):
        assert not [word for word in ("cannot leave", "has left", "lost", "started again") if word in text], text
    assert [row["state"] for row in summary["per_worker"]] == ["stopped"] * 4
    assert (summary["losses"], summary["departures"]) == ([], [])
    assert Path(summary["checkpoint"]).parent == folder.checkpoints_dir
