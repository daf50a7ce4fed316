"""A job begins with two of four workers. Others enter, the first one leaves; one process has the same.

The loss is over the rows of all workers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import DOUBLE, Story
from tests.integration.membership.test_gathers_elastic import GATHERED
from tests.launching import dynamix, ends, wait_for

pytestmark = pytest.mark.timeout(300)

# Worker 0 leaves when there were four for a while, and the others end the epoch in which there were three since.
FAULT = f"""{GATHERED}
four = after = 0  # iterations with so many workers, and without worker 0
def fault(rank, iteration):
    gathered()
    if rank == 0 and four == 15:
        os.kill(os.getpid(), signal.SIGUSR1)
def stepped(present):
    global four, after
    four += len(present) == 4
    after += four > 0 and 0 not in present
    time.sleep(0.02 if four else 0.3)  # a longer training is no better test
def enough():
    return after >= 10
"""


@pytest.mark.parametrize(
    ("comm", "keep", "prefetch", "batches"),
    [("byteps", "local", 2, (12, 18, 24)), ("gloo", "global", 0, (12, 12, 12))],
)
def test_a_job_grows_from_two_workers_to_four(
    tmp_path: Path, comm: str, keep: str, prefetch: int, batches: tuple[int]
) -> None:
    elastic = f", max_workers: 5, keep: {keep}"
    keys = f"prefetch: {prefetch}\npolicy: {{name: static}}\n"
    story = Story(tmp_path, None, FAULT, DOUBLE, min_workers=1, elastic=elastic, keys=keys, workers=2, comm=comm)
    job = story.launch()
    wait_for(lambda: len(story.sums(0)) > 5 or job.poll() is not None, "two that train", limit_s=120)
    asked = []
    for rank in ("2", "3"):
        asking = dynamix("join", rank, cwd=tmp_path)
        asked.append(asking.communicate(timeout=120)[0])
        assert asking.returncode == 0, asked[-1]
    ends(job, 0, limit_s=100)
    assert [told.partition(" workers")[0] for told in asked] == ["worker 2 has entered; 3", "worker 3 has entered; 4"]
    story.check([1, 2, 3], rtol=1e-9)
    story.check_epochs(1)
    sums = story.sums(1)
    there = [one["present"] for one in sums]
    assert list(dict.fromkeys(map(tuple, there))) == [(0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 2, 3)]
    for rank in (2, 3):
        told = story.sums(rank)
        assert told == sums[-len(told) :], "it sees the same sums; over BytePS it follows before"
        there_too = [rank in one["present"] for one in told]
        assert there_too == sorted(there_too) and there_too[0] == (comm == "gloo") and there_too[-1]
        assert [one["sizes"][rank] > 0 for one in told] == there_too
    before = sums[: there.index([1, 2, 3]) - 1 - prefetch]
    for count, batch in zip((2, 3, 4), batches, strict=True):  # smaller ones end an epoch
        assert max(sum(one["sizes"]) for one in before if len(one["present"]) == count) == batch
    assert all(one["factor"] == pytest.approx(sum(one["sizes"]) / 12) for one in sums), "B0 is that of the first two"
    summary = story.summary()
    assert [one.partition(" from")[0] for one in summary["arrivals"]] == ["3 of 3 workers", "4 of 4 workers"]
    assert summary["losses"] == [] and summary["departures"][0].startswith("3 of 4 workers from iteration ")
    assert [row["state"] for row in summary["per_worker"]] == ["left", *["finished"] * 3, "not there yet"]
    story.assert_nothing_left()
