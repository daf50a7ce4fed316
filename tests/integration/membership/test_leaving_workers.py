"""Workers leave a job on notice, and the others go on to the result of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import WIDE, Story
from tests.launching import dynamix, wait_for

pytestmark = pytest.mark.timeout(240)

FAULT = """\
from worker_hooks.process.termination import TERMINATION
def fault(rank, iteration):
    if (rank, iteration) == (2, 30):
        all_have_met()
        os.kill(os.getpid(), signal.SIGTERM)
    if (rank, iteration) == (0, 60):
        pathlib.Path("asks").touch()
        while not TERMINATION.leaving:
            time.sleep(0.01)
    if (rank, iteration) == (1, 80):
        os.kill(os.getpid(), signal.SIGUSR1)
"""
EPOCHS = 6


@pytest.mark.parametrize(("comm", "wire"), [("byteps", "int8"), ("gloo", "float32")])
def test_workers_leave_by_a_signal_and_by_the_command(comm: str, wire: str, tmp_path: Path) -> None:
    """First an ordinary worker leaves, then the one that leads. A third one would leave too few."""
    story = Story(tmp_path, None, FAULT, WIDE, epochs=EPOCHS, comm=comm, wire=wire)
    job = story.launch()
    wait_for(lambda: (tmp_path / "asks").exists() or job.poll() is not None, "iteration 60", limit_s=120)
    asking = dynamix("leave", "0", cwd=tmp_path)
    told, _ = asking.communicate(timeout=60)
    output, _ = job.communicate(timeout=100)
    assert (asking.returncode, job.returncode) == (0, 0), told + output
    refused = "warning: worker 1 cannot leave: 1 of 2 workers would stay, and elastic.min_workers is 2"
    assert output.count(refused) == 1, output
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
