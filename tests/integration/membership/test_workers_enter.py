"""Workers of a job are killed while it trains. Others enter, and all end with the result of one process."""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.studies.membership import decided_windows
from tests.integration.membership.elastic_story import CHANGES_WIRE, DOUBLE, PLAIN, Story
from tests.launching import dynamix, ends, wait_for

pytestmark = pytest.mark.timeout(300)

# As behind a slow link: there are several buckets, and a newcomer must have those of the others. Those in KILLED are
# killed in iteration 30, the first time, worker 3 once more when it has the state of the others. All train until there
# were four for 20 iterations, by a plan of the arbitrator: the sums tell. While some are missing, the others train
# slowly: a longer training is no better test. A scheduler belongs to the state that a newcomer gets.
FAULT = """\
from dynamix_ps.comm.byteps import comm as over_servers
from dynamix_ps.comm.ring.gloo import GlooComm
over_servers.bucket_floor_bytes = lambda rate: 64
GlooComm._measure_link = lambda comm, host: setattr(comm, "least_bucket_bytes", 64)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.9999)
marker = pathlib.Path("killed-while-entering")
whole = 0  # iterations with all workers after the last loss
def attached():
    run.register(scheduler=scheduler)
    if not first and run.rank == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
def fault(rank, iteration):
    if first and rank in KILLED and iteration == 30:
        all_have_met()
        os.kill(os.getpid(), signal.SIGKILL)
def stepped(present):
    global whole
    scheduler.step()
    planned = len(present) == 4 and not run.training.plans.switch._entered
    whole = whole + 1 if planned and run.iteration > 31 else 0
    time.sleep(0.02 if len(present) == 4 else 0.1)
def enough():
    return whole >= 20
"""
# Before a worker is killed, the launcher has no file left that it may open.
NO_FILES = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one that is started again has the launcher's limit
before_limit = fault
def fault(rank, iteration):
    if first and rank in KILLED and iteration == 30:
        launcher = os.getppid()
        highest = max(map(int, os.listdir(f"/proc/{launcher}/fd")))
        resource.prlimit(launcher, resource.RLIMIT_NOFILE, (highest + 1, most))
    before_limit(rank, iteration)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Which workers are `killed`, and in what kind of job. `follows`: newcomers follow the others before they enter."""

    killed: tuple[int, ...]
    keys: str
    fault: str = FAULT
    model: str = DOUBLE
    comm: str = "byteps"
    wire: str = "float32"
    keep: str = "global"
    follows: bool = True


# Where the first worker is lost, another one is, too, twice; and batches are prepared ahead. What sums are that travel
# in fewer bytes is told by those that were in them: nobody can make them again. In a ring nobody can follow, nor where
# the wire changes or `lr: guard` learns from each sum: all wait for the copy of the state.
CASES = {
    "one": Case((2,), "prefetch: 0\n", model=PLAIN, wire="int8"),
    "the first too": Case((0, 3), "prefetch: 2\n", keep="local"),
    "byteps, nobody follows": Case(
        (2,), "policy: {name: static}\nlr: guard\n", CHANGES_WIRE + FAULT, PLAIN, wire="auto", follows=False
    ),
    "gloo, the first too, and no files": Case(
        (0, 3), "prefetch: 2\nlaunch: {fork: false}\n", FAULT + NO_FILES, comm="gloo", keep="local", follows=False
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_restart_enters(tmp_path: Path, case: Case) -> None:
    fault, elastic = case.fault.replace("KILLED", repr(case.killed)), f", restarts: 3, keep: {case.keep}"
    story = Story(tmp_path, None, fault, case.model, case.wire, elastic=elastic, keys=case.keys, comm=case.comm)
    output = ends(story.launch(), 0, limit_s=260)
    assert (tmp_path / "killed-while-entering").exists() == (3 in case.killed)
    assert ("open files of the launcher" in output) == case.fault.endswith(NO_FILES)
    story.check([1, 0, 2, 3], rtol=1e-9 if case.model == DOUBLE else None)
    story.check_epochs(1)
    sums = story.sums(1)  # of a worker that was there all the time
    for rank in case.killed:
        told = story.sums(rank)
        assert told == sums[-len(told) :], "a newcomer may follow the others, and then sees the same sums"
        there = [rank in one["present"] for one in told]
        assert there == sorted(there) and there[0] != case.follows and there[-1], "first it follows, then it is there"
        assert [one["sizes"][rank] > 0 for one in told] == there, "with its share"
        planned = [sizes[rank] > 0 for sizes in story.planned()]
        changes = [has_some for has_some, _ in itertools.groupby(planned[planned.index(False) :])]
        assert changes[:2] == [False, True], "so it does in plans"
        applied = [sizes[rank] > 0 for sizes in story.applied(1)]
        assert not all(applied) and applied[-1], "which all train by"
    if case.keep == "global":
        assert {sum(sizes) for sizes in (*story.planned(), *story.applied(1))} == {24}
    if case.wire == "auto":
        assert len(story.wires()) > 4 and {wire for _, wire in story.wires()} == {"float32", "bf16", "int8"}
    summary = story.summary()
    assert summary["reason"] == "all workers finished"
    assert summary["losses"] and summary["arrivals"][-1].startswith("4 of 4 workers")
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    story.assert_nothing_left()


# Worker 1 is killed and started again, then worker 2 leaves and is told to come back. All train until there were three
# for some windows after both.
ONE_AFTER_THE_OTHER = """\
back = whole = 0  # iterations with all workers: after the restart, and after both
gone = False  # worker 2 was
def fault(rank, iteration):
    if first and (rank, iteration) == (1, 30):
        all_have_met()
        os.kill(os.getpid(), signal.SIGKILL)
    if first and rank == 2 and back == 25:
        os.kill(os.getpid(), signal.SIGUSR1)
def stepped(present):
    global back, gone, whole
    gone = gone or 2 not in present or (run.rank == 2 and not first)
    planned = len(present) == 3 and not run.training.plans.switch._entered
    back = back + 1 if planned and run.iteration > 31 else 0
    whole = whole + 1 if planned and gone else 0
    time.sleep(0.02 if len(present) == 3 else 0.1)
def enough():
    return whole >= 30
"""


@pytest.mark.parametrize(("comm", "policy"), [("byteps", "random"), ("byteps", "stigmergy"), ("gloo", "stigmergy")])
def test_plans_go_on_after_a_restart_and_after_the_command(tmp_path: Path, comm: str, policy: str) -> None:
    """With `stigmergy` workers choose their own sizes, and the arbitrator decides on members alone."""
    keys, slow = f"policy: {{name: {policy}}}\nemulation: hook\n", "{batch: 6}, {batch: 6, speed: 0.5}, {batch: 6}"
    elastic = ", restarts: 3"
    story = Story(
        tmp_path, None, ONE_AFTER_THE_OTHER, DOUBLE, min_workers=1, elastic=elastic, keys=keys, workers=slow, comm=comm
    )
    job = story.launch()
    left = tmp_path / "runs" / "latest" / "workers" / "worker-2.jsonl"
    wait_for(
        lambda: (left.exists() and '"worker_left"' in left.read_text()) or job.poll() is not None, "leave", limit_s=120
    )
    told = ends(dynamix("join", "2", cwd=tmp_path), 0, limit_s=120)
    assert told.startswith("worker 2 has entered; 3 workers go on from iteration "), told
    ends(job, 0, limit_s=200)
    story.check([0, 1, 2], rtol=1e-9)
    story.check_epochs(0)
    sums = story.sums(0)
    for rank in (1, 2):
        own = story.sums(rank)
        assert own == sums[-len(own) :], "it sees the same sums"
    summary = story.summary()
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 3
    assert (len(summary["losses"]), len(summary["departures"]), len(summary["arrivals"])) == (1, 1, 2)
    story.assert_nothing_left()
    if policy == "stigmergy":
        whole = {tuple(one["sizes"]) for one in sums if one["present"] == [0, 1, 2]}
        without = {tuple(one["sizes"]) for one in sums if len(one["present"]) == 2}
        assert len(whole) > 3 and len(without) > 1, "sizes change"
        assert not story.planned()
    else:
        check_windows(story)


def check_windows(story: Story) -> None:
    """All workers tell all windows once, cut alike, and there are plans until the end."""
    folder = story.record
    lines = decided_windows.read_lines(folder)
    entered = {line["iteration"] for line in lines if line["kind"] == "workers_entered"}
    assert len(entered) == 2
    assert decided_windows.undecided(folder, entered) == [] == decided_windows.told_twice(folder)
    with folder.windows_csv.open(newline="") as table:
        rows = list(csv.DictReader(table))
    cuts = {(row["window"], row["first_iteration"], row["iterations"], row["plan_version"]) for row in rows}
    assert len(cuts) == len({row["window"] for row in rows}), "all cut alike"
    last = {row["rank"]: int(row["window"]) for row in rows}
    assert len(set(last.values())) == 1
    planned = [line["window"] for line in lines if line["kind"] == "plan"]
    assert sum(window > last["0"] - 4 for window in planned) >= 2, "another plan after every clean window"
