"""Workers of a job are killed while it trains. Others enter, and all end with the result of one process."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.membership import decided_windows
from tests.integration.membership.elastic_story import CHANGES_WIRE, DOUBLE, PLAIN, Story
from tests.launching import dynamix, ends, wait_for

pytestmark = pytest.mark.timeout(300)

# While some are missing the others train slowly: a longer training is no better test.
PACE = """\
PACE_S = 0.1, 0.02  # per iteration, when not all are there and when all are
"""
# As behind a slow link: there are several buckets, and a newcomer must have those of the others.
SLOW_LINK = """\
from dynamix_ps.comm.byteps import comm as over_servers
from dynamix_ps.comm.ring.gloo import GlooComm
over_servers.bucket_floor_bytes = lambda rate: 64
GlooComm._measure_link = lambda comm, host: setattr(comm, "least_bucket_bytes", 64)
"""
# Those in KILLED get a signal in this iteration, the first time. All train until there were four for 20 iterations, by
# a plan of the arbitrator: the sums tell. A scheduler belongs to the state that a newcomer gets.
FAULT = (
    PACE
    + SLOW_LINK
    + """\
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.9999)
first = os.environ["DYNAMIX_STARTS"] == "0"
whole = 0  # iterations with all workers after the last loss
def attached():
    run.register(scheduler=scheduler)
def fault(rank, iteration):
    if first and KILLED.get(rank) == iteration:
        while not run.training.session.may_leave:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGNAL)
def stepped(present):
    global whole
    scheduler.step()
    planned = len(present) == 4 and not run.training.plans.switch._entered
    whole = whole + 1 if planned and run.iteration > max(KILLED.values()) + 1 else 0
    time.sleep(PACE_S[len(present) == 4])
def enough():
    return whole >= 20
"""
)
DIES_AGAIN = """\
register = attached
marker = pathlib.Path("killed-while-entering")
def attached():
    register()
    if not first and run.rank == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def story_of(
    folder: Path,
    killed: dict[int, int],
    by: str,
    keep: str = "global",
    prefetch: int = 0,
    comm: str = "byteps",
) -> Story:
    """Worker 3, if it is among the `killed`, is killed once more when it has the state of the others."""
    fault = (FAULT + DIES_AGAIN * (3 in killed)).replace("KILLED", repr(killed)).replace("SIGNAL", by)
    elastic, keys = f", restarts: 3, keep: {keep}", f"prefetch: {prefetch}\n"
    return Story(folder, None, fault, DOUBLE, elastic=elastic, keys=keys, comm=comm)


def join_when_left(folder: Path, job: Any, words: str, rank: int = 2) -> None:
    """`dynamix join` when this worker has left, and what it says."""
    records = folder / "runs" / "latest" / "workers" / f"worker-{rank}.jsonl"
    left = '"worker_left"'
    wait_for(lambda: (records.exists() and left in records.read_text()) or job.poll() is not None, "leave", limit_s=120)
    asking = dynamix("join", str(rank), cwd=folder)
    told, _ = asking.communicate(timeout=120)
    assert asking.returncode == 0 and told.startswith(words), told


@pytest.mark.parametrize(
    ("killed", "keep", "prefetch"),
    [({2: 30}, "global", 0), ({0: 30, 3: 30}, "local", 2)],
    ids=["one", "the first too"],
)
def test_a_restart_enters(tmp_path: Path, killed: dict[int, int], keep: str, prefetch: int) -> None:
    """The second time the one that leads is lost, and so is another, twice; and batches are prepared ahead."""
    story = story_of(tmp_path, killed, "SIGKILL", keep, prefetch)
    ends(story.launch(), 0, limit_s=260)
    assert (tmp_path / "killed-while-entering").exists() == (3 in killed)
    story.check([1, 0, 2, 3], rtol=1e-9)
    story.check_epochs(1)
    sums = story.sums(1)  # of a worker that was there all the time
    for rank in killed:
        told = story.sums(rank)
        assert told == sums[-len(told) :], "a newcomer follows the others, and then sees the same sums"
        there = [rank in one["present"] for one in told]
        assert there == sorted(there) and not there[0] and there[-1], "first it follows, then it is there"
        assert [one["sizes"][rank] > 0 for one in told] == there, "with its share"
        planned = [sizes[rank] > 0 for sizes in story.planned()]
        changes = [has_some for has_some, _ in itertools.groupby(planned[planned.index(False) :])]
        assert changes[:2] == [False, True], "so it does in plans"
        applied = [sizes[rank] > 0 for sizes in story.applied(1)]
        assert not all(applied) and applied[-1], "which all train by"
    if keep == "global":
        assert {sum(sizes) for sizes in (*story.planned(), *story.applied(1))} == {24}
    summary = story.summary()
    assert summary["reason"] == "all workers finished"
    assert summary["losses"] and summary["arrivals"][-1].startswith("4 of 4 workers")
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    story.assert_nothing_left()


# Before a worker is killed, the launcher has no file left that it may open.
NO_FILES = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one that is started again has the launcher's limit
before_limit = fault
def fault(rank, iteration):
    if first and KILLED.get(rank) == iteration:
        launcher = os.getppid()
        highest = max(map(int, os.listdir(f"/proc/{launcher}/fd")))
        resource.prlimit(launcher, resource.RLIMIT_NOFILE, (highest + 1, most))
    before_limit(rank, iteration)
"""


def test_a_restart_enters_where_the_launcher_has_no_files_left(tmp_path: Path) -> None:
    story = story_of(tmp_path, {2: 30}, "SIGKILL", comm="gloo")
    fault, keys = story.fault + NO_FILES.replace("KILLED", "{2: 30}"), story.keys + "launch: {fork: false}\n"
    job = replace(story, fault=fault, keys=keys).launch()
    output = ends(job, 0, limit_s=260)
    assert output.count("open files of the launcher") >= 1, output
    story.check([1, 0, 2, 3], rtol=1e-9)
    summary = story.summary()
    assert summary["reason"] == "all workers finished"
    assert summary["arrivals"][-1].startswith("4 of 4 workers")
    story.assert_nothing_left()


# Worker 0 leaves while worker 2 follows it, which takes no sum of it before. All train until worker 2 has entered.
THE_ONE_IT_FOLLOWS_LEAVES = """
import pathlib
before_following = fault
gone = pathlib.Path("unwound-0")
def fault(rank, iteration):
    before_following(rank, iteration)
    if rank == 0 and run.training.membership.votes.newcomers.here:
        os.kill(os.getpid(), signal.SIGUSR1)
    while rank == 2 and run.training.sums.follows and not gone.exists():
        time.sleep(0.01)
def stepped(present):
    global whole
    scheduler.step()
    whole = whole + 1 if present == [1, 2, 3] else 0
    time.sleep(PACE_S[present == [1, 2, 3] or run.iteration < 30])
"""


def test_it_enters_though_the_one_it_follows_leaves(tmp_path: Path) -> None:
    """The first time it ends with that one. That does not count: it was started again as often as it may be."""
    story = story_of(tmp_path, {2: 30}, "SIGKILL")
    story = replace(story, fault=story.fault + THE_ONE_IT_FOLLOWS_LEAVES, elastic=", restarts: 1")
    ends(story.launch(), 0, limit_s=260)
    story.check([1, 2, 3], rtol=1e-9)
    story.check_epochs(1)
    events = [json.loads(line) for line in story.record.events_file.read_text().splitlines()]
    assert [event["role"] for event in events if event["kind"] == "kept_out"] == ["worker-2"]
    assert [event["restarts"] for event in events if event["kind"] == "role_restarted"] == [1, 2]
    story.assert_nothing_left()


@pytest.mark.parametrize(
    ("comm", "killed", "keep", "keys"),
    [
        ("byteps", {2: 30}, "global", "policy: {name: static}\nlr: guard\n"),
        ("gloo", {0: 30, 3: 30}, "local", "prefetch: 2\n"),
    ],
    ids=["byteps", "gloo, the first too"],
)
def test_where_nobody_can_follow_the_others_wait_for_the_copy(
    tmp_path: Path, comm: str, killed: dict[int, int], keep: str, keys: str
) -> None:
    story = replace(story_of(tmp_path, killed, "SIGKILL", keep, comm=comm), keys=keys)
    ends(story.launch(), 0, limit_s=260)
    assert (tmp_path / "killed-while-entering").exists() == (3 in killed)
    story.check([1, 0, 2, 3], rtol=1e-9)
    story.check_epochs(1)
    sums = story.sums(1)
    for rank in killed:
        told = story.sums(rank)
        assert told == sums[-len(told) :] and all(rank in one["present"] and one["sizes"][rank] for one in told)
    summary = story.summary()
    assert summary["losses"] and summary["arrivals"][-1].startswith("4 of 4 workers")
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    story.assert_nothing_left()


def test_sums_that_travel_in_fewer_bytes_are_followed_bit_by_bit(tmp_path: Path) -> None:
    """Nobody can make them again: what they are is told by those that were in them."""
    story = replace(story_of(tmp_path, {2: 30}, "SIGKILL"), model=PLAIN, wire="int8")
    ends(story.launch(), 0, limit_s=260)
    told, sums = story.sums(2), story.sums(1)
    assert told == sums[-len(told) :] and 2 not in told[0]["present"] and 2 in told[-1]["present"]
    story.check([1, 0, 2, 3])
    story.check_epochs(1)
    story.assert_nothing_left()


def test_who_enters_has_the_wire_of_the_others(tmp_path: Path) -> None:
    """All wait for the copy of its state, as it can know the losses of no other sum than its own."""
    story = story_of(tmp_path, {2: 30}, "SIGKILL")
    smooth = PLAIN.replace("ReLU", "Tanh")
    story = replace(story, model=smooth, wire="auto", fault=CHANGES_WIRE + story.fault)
    ends(story.launch(), 0, limit_s=260)
    assert all(2 in one["present"] for one in story.sums(2))
    story.check([1, 0, 2, 3], rtol=1e-2)
    story.check_epochs(1)
    assert len(story.wires()) > 4 and {wire for _, wire in story.wires()} == {"float32", "bf16", "int8"}
    story.assert_nothing_left()


# Worker 2 is killed and started again, then worker 3 leaves and is told to come back. All train until there were four
# for some windows after both.
ONE_AFTER_THE_OTHER = (
    PACE
    + """\
first = os.environ["DYNAMIX_STARTS"] == "0"
back = whole = 0  # iterations with all workers: after the restart, and after both
gone = False  # worker 3 was
def fault(rank, iteration):
    if first and (rank, iteration) == (2, 30):
        while not run.training.session.may_leave:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if first and rank == 3 and back == 25:
        os.kill(os.getpid(), signal.SIGUSR1)
def stepped(present):
    global back, gone, whole
    gone = gone or 3 not in present or (run.rank == 3 and not first)
    planned = len(present) == 4 and not run.training.plans.switch._entered
    back = back + 1 if planned and run.iteration > 31 else 0
    whole = whole + 1 if planned and gone else 0
    time.sleep(PACE_S[len(present) == 4])
def enough():
    return whole >= 25
"""
)


@pytest.mark.parametrize(("comm", "policy"), [("byteps", "random"), ("gloo", "ppo")])
def test_plans_go_on_after_a_restart_and_after_the_command(tmp_path: Path, comm: str, policy: str) -> None:
    keys = f"policy: {{name: {policy}}}\n"
    story = Story(tmp_path, None, ONE_AFTER_THE_OTHER, DOUBLE, elastic=", restarts: 3", keys=keys, comm=comm)
    job = story.launch()
    join_when_left(tmp_path, job, "worker 3 has entered; 4 workers go on from iteration ", rank=3)
    ends(job, 0, limit_s=200)
    folder = story.record
    lines = decided_windows.read_lines(folder)
    entered = {line["iteration"] for line in lines if line["kind"] == "workers_entered"}
    assert len(entered) == 2
    assert decided_windows.undecided(folder, entered) == []
    with folder.windows_csv.open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert len({(row["rank"], row["window"]) for row in rows}) == len(rows)
    cuts = {(row["window"], row["first_iteration"], row["iterations"], row["plan_version"]) for row in rows}
    assert len(cuts) == len({row["window"] for row in rows}), "all cut alike"
    last = {row["rank"]: int(row["window"]) for row in rows}
    assert len(set(last.values())) == 1
    if policy == "random":  # another plan after every clean window
        planned = [line["window"] for line in lines if line["kind"] == "plan"]
        assert sum(window > last["0"] - 4 for window in planned) >= 2
    story.check([1, 0, 2, 3], rtol=1e-9)
    story.check_epochs(1)
    story.assert_nothing_left()
