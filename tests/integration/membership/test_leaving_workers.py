"""Workers leave a job on notice, and the others go on to the result of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import WIDE, Story
from tests.launching import dynamix, ends, wait_for

pytestmark = pytest.mark.timeout(240)

FAULT = """\
from worker_hooks.process.termination import TERMINATION
def signals(*numbers):
    all_have_met()
    for number in numbers:
        os.kill(os.getpid(), number)
def wait_to_be_asked():
    pathlib.Path("asks").touch()
    while not TERMINATION.leaving:
        time.sleep(0.01)
def fault(rank, iteration):
    ACTS.get((rank, iteration), lambda: None)()
"""
EPOCHS = 6


def story_of(folder: Path, acts: str, comm: str = "byteps", wire: str = "float32") -> Story:
    """`acts`: what a worker does to itself in which iteration."""
    return Story(folder, None, FAULT.replace("ACTS", f"({acts})"), WIDE, epochs=EPOCHS, comm=comm, wire=wire)


@pytest.mark.parametrize(("comm", "wire"), [("byteps", "int8"), ("gloo", "float32")])
def test_workers_leave_by_a_signal_and_by_the_command(comm: str, wire: str, tmp_path: Path) -> None:
    """First an ordinary worker leaves, then the one that leads."""
    story = story_of(tmp_path, "{(2, 30): lambda: signals(signal.SIGTERM), (0, 60): wait_to_be_asked}", comm, wire)
    job = story.launch()
    wait_for(lambda: (tmp_path / "asks").exists() or job.poll() is not None, "iteration 60", limit_s=120)
    asking = dynamix("leave", "0", cwd=tmp_path)
    told, _ = asking.communicate(timeout=60)
    output, _ = job.communicate(timeout=100)
    assert (asking.returncode, job.returncode) == (0, 0), told + output
    story.check([1, 3])
    story.check_epochs(1)
    sums = story.sums(1)
    second, zeroth = (vote + 1 + sums[0]["lag"] for vote in (30, 60))  # the last sums of the two, with nothing
    assert told == f"worker 0 has left; 2 workers go on from iteration {zeroth}\n"
    of_all = [0, 1, 2, 3]
    expected = [of_all] * (second + 1) + [[0, 1, 3]] * (zeroth - second) + [[1, 3]] * (len(sums) - zeroth - 1)
    assert [one["present"] for one in sums] == expected
    assert all(one["sizes"][2] for one in sums[:second]) and not any(one["sizes"][2] for one in sums[second:])
    assert all(one["sizes"][0] for one in sums[:zeroth]) and not any(one["sizes"][0] for one in sums[zeroth:])
    assert [sum(one["sizes"]) for one in sums].count(24) >= len(sums) - 2 * EPOCHS, "but for the ends of epochs"
    assert [len(story.sums(rank)) for rank in (2, 0)] == [second, zeroth], "no step with nothing"
    assert all((tmp_path / f"unwound-{rank}").exists() for rank in of_all)

    summary = story.summary()
    assert summary["reason"].startswith("2 of 4 workers finished: worker-0 left")
    assert summary["departures"] == [
        f"3 of 4 workers from iteration {second}: worker 2 left",
        f"2 of 4 workers from iteration {zeroth}: worker 0 left",
    ]
    assert summary["losses"] == []
    assert [row["state"] for row in summary["per_worker"]] == ["left", "finished", "left", "finished"]
    lines = story.record.membership_file.read_text().splitlines()
    records = [record["kind"] for line in lines for record in json.loads(line)]
    assert records.count("began") == 1, "no generation but the first"
    assert "lost" not in records and records.count("left") == 4
    story.assert_nothing_left()


def test_a_second_sigterm_is_a_loss_and_a_leave_that_leaves_too_few_is_refused(tmp_path: Path) -> None:
    acts = (
        "{(3, 10): lambda: signals(signal.SIGTERM, signal.SIGTERM), (2, 20): lambda: signals(signal.SIGUSR1), "
        "(1, 40): lambda: signals(signal.SIGUSR1)}"
    )
    story = story_of(tmp_path, acts)
    output = ends(story.launch(), 0, limit_s=200)
    story.check([0, 1])
    story.check_epochs(0)
    assert "worker 1 cannot leave: 1 of 2 workers would stay, and elastic.min_workers is 2" in output
    summary = story.summary()
    assert [row["state"] for row in summary["per_worker"]] == ["finished", "finished", "left", "lost"]
    assert [one.split(",")[0] for one in summary["losses"]] == ["3 of 4 workers from iteration 10: worker 3 lost"]
    assert summary["departures"][0].endswith("worker 2 left")
    story.assert_nothing_left()
