"""An elastic ring over three hosts with a worker each, of which the last one is told to end while all train."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.integration.membership.elastic_story import Story
from tests.launching import wait_for

# All train until two have for a while.
UNTIL_ONE_IS_GONE = """\
alone = 0
def fault(rank, iteration):
    while not run.training.session.may_leave:  # all have met, and this worker knows it
        time.sleep(0.01)
def stepped(present):
    global alone
    alone += present == [0, 1]
    time.sleep(0.02)
def enough():
    return alone >= 10
"""


class NoticedHost:
    """The job, whose script and cluster file are written to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._story = Story(folder, None, UNTIL_ONE_IS_GONE, comm="gloo", workers=3)
        self._story.write()

    def wait_until_all_train(self, launcher: subprocess.Popen[str]) -> None:
        wait_for(lambda: len(self._story.sums(2)) > 5 or launcher.poll() is not None, "the start of training", 60.0)
        assert launcher.poll() is None, launcher.communicate()[0]

    def check(self, host: str, output: str) -> None:
        """After the end of the job, which has printed `output`: the worker of `host` has left by vote."""
        story, folder = self._story, self._story.record
        story.check([0, 1])
        story.check_epochs(0)
        sums = story.sums(0)
        last = len(story.sums(2))  # of its sums, with nothing: it makes no step with it
        assert [one["present"] for one in sums] == [[0, 1, 2]] * (last + 1) + [[0, 1]] * (len(sums) - last - 1)
        assert all(one["sizes"][2] for one in sums[:last]) and not any(one["sizes"][2] for one in sums[last:])
        assert (story.folder / "unwound-2").exists(), "its script came to its end"
        lines = folder.membership_file.read_text().splitlines()
        records = [record["kind"] for line in lines for record in json.loads(line)]
        assert (records.count("began"), records.count("left")) == (1, 3), "no iteration was made anew"
        summary = story.summary()
        assert summary["departures"] == [f"2 of 3 workers from iteration {last}: worker 2 left"]
        assert summary["losses"] == []
        assert [row["state"] for row in summary["per_worker"]] == ["finished", "finished", "left"]
        assert f'"host": "{host}"' in next(
            line for line in folder.events_file.read_text().splitlines() if '"host_leaves"' in line
        ), output
        story.assert_nothing_left()
