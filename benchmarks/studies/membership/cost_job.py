"""One job of the study of membership: a worker goes by a signal, and may come back, or a server goes.

Workers note on the monotonic clock, which all processes of a machine share, when a step was complete.
"""

from __future__ import annotations

import itertools
import math
import signal
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.studies.launching import launched
from benchmarks.studies.membership.decided_windows import decisions_go_on
from dynamix_ps.config.schema import (
    BatchBounds,
    Cluster,
    Config,
    Elastic,
    Metrics,
    PolicySection,
    ServerSection,
    WorkerSection,
)
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

WORKERS, SERVERS, BATCH = 4, 2, 8
ITERATIONS, STRUCK_AT, WARM_UP = 40, 20, 5
SETTLED = 5  # iterations after which a change has had its effect
DECIDED = 25  # and after which, with a worker that enters, a window has been decided
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a worker or a server, and which wait of the others counts.

    Attributes:
        signal: that it gets in the middle of a backward pass.
        wait: `next step`: from the signal until the step of that iteration. `longest gap`: between two steps, of those
            while it goes. `entry`: the worker is started again, and it is the longest gap from the first one that it
            follows on, until it has entered.
        to_server: a server gets the signal, from the worker that is in the middle of its backward pass.
        comm: data plane of the job. Over a ring the others wait for the copy of the state, and nobody follows.
    """

    signal: signal.Signals
    wait: Literal["next step", "longest gap", "entry"] = "next step"
    to_server: bool = False
    comm: Literal["byteps", "gloo"] = "byteps"

    @property
    def comes_back(self) -> bool:
        """Whether the worker is started again."""
        return self.wait == "entry"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event cost the others.

    Attributes:
        iteration_s: median time of an iteration before.
        wait_s: of that one of the others that waited longest.
        lost: steps that one of them did not make.
        repeated: steps that one of them made more than once.
        equal: the weights of all that are there at the end are, bit for bit.
        decided: one of the first windows after the event was, and no worker has told one twice.
        copy_s: how long the others waited for the copy of the state, where a worker entered.
        first_sample_s: from the start of a worker that entered to the first step with its samples.
    """

    iteration_s: float
    wait_s: float
    lost: int
    repeated: int
    equal: bool
    decided: bool = True
    copy_s: float = 0.0
    first_sample_s: float | None = None

    @property
    def beyond_s(self) -> float:
        """The wait beyond one ordinary iteration and the copy."""
        return self.wait_s - self.iteration_s - self.copy_s


Steps = Sequence[tuple[int, float]]  # number of the iteration, and when its step was complete


def steps_file(folder: Path, rank: int) -> Path:
    """The steps of a worker, one a line."""
    return folder / f"steps-{rank}"


def struck_file(folder: Path) -> Path:
    """When the signal was sent."""
    return folder / "struck"


def started_file(folder: Path, rank: int) -> Path:
    """When the process of a worker began."""
    return folder / f"started-{rank}"


def weights_file(folder: Path, rank: int) -> Path:
    """A digest of the last weights of a worker."""
    return folder / f"weights-{rank}"


def run_job(event: Event, struck: int) -> Outcome:
    """Run one job, in which the event happens to the worker with rank `struck`, or to a server in its backward pass.

    Raises:
        SystemExit: the job failed; its output is in the text.
        TimeoutExpired: it took longer than LIMIT_S.
    """
    with tempfile.TemporaryDirectory(prefix="dx-membership-") as name:
        folder = Path(name)
        run = launched(config_of(folder, event, struck), folder, LIMIT_S)
        others = [rank for rank in range(WORKERS) if rank != struck or event.to_server]
        steps = {rank: _read(steps_file(folder, rank)) for rank in others}
        there = range(WORKERS) if event.comes_back else others
        ends = (weights_file(folder, rank) for rank in there)  # none of a worker that was lost with a server
        equal = len({file.read_text() if file.exists() else "" for file in ends}) == 1
        if not event.comes_back:
            outcome = outcome_of(event, steps, equal, float(struck_file(folder).read_text()))
            return replace(outcome, decided=decisions_go_on(run, STRUCK_AT))
        entered, copy_s = _entry(run)
        its_steps = _read(steps_file(folder, struck))
        started_s = float(started_file(folder, struck).read_text())
        outcome = outcome_of(event, steps, equal, followed=its_steps[0][0], entered=entered)
        its_first_s = dict(its_steps)[entered] - started_s
        return replace(outcome, decided=decisions_go_on(run, entered), copy_s=copy_s, first_sample_s=its_first_s)


def _entry(run: RunFolder) -> tuple[int, float]:
    """The iteration with which the worker entered, and how long the others waited for the copy of the state."""
    lines = (line for rank in range(WORKERS) for line in JsonLinesTail(run.worker_file(rank)).read())
    return max((int(line["iteration"]), float(line["copy_s"])) for line in lines if line["kind"] == "workers_entered")


def config_of(folder: Path, event: Event, struck: int) -> Config:
    """The cluster file, with which all that is written comes to `folder`."""
    options: dict[str, object] = {"struck": struck, "at": STRUCK_AT, "signal": int(event.signal), "out": folder}
    if event.to_server:
        options["server"] = struck % SERVERS
    servers = (ServerSection(),) * SERVERS if DATA_PLANES[event.comm].has_servers else None
    length = {"settled": DECIDED} if event.comes_back else {"iterations": ITERATIONS}
    return Config(
        name="membership",
        run_dir=str(folder / "runs"),
        comm=event.comm,
        cluster=Cluster(servers=servers, workers=(WorkerSection(batch=BATCH),) * WORKERS),
        batch=BatchBounds(min=1, max=4 * BATCH),
        elastic=Elastic(min_workers=WORKERS - 1, restarts=int(event.comes_back)),
        window=10,
        policy=PolicySection(name="static"),
        metrics=Metrics(network="off", tensorboard=False),
        command=(
            *("python", "-m", "benchmarks.studies.membership.cost_worker"),
            *(word for name, value in {**options, **length}.items() for word in (f"--{name}", str(value))),
        ),
    )


def _read(file: Path) -> Steps:
    pairs = (line.split() for line in file.read_text().splitlines())
    return [(int(iteration), float(at_s)) for iteration, at_s in pairs]


def outcome_of(
    event: Event,
    steps: Mapping[int, Steps],
    equal: bool,
    struck_s: float = math.nan,
    followed: int = STRUCK_AT,
    entered: int = STRUCK_AT,
) -> Outcome:
    """From the steps of those that stayed, by rank.

    The iteration in which the signal came cannot end without what the worker that was struck had not sent yet, or the
    server had not got. So its step is the first that shows a loss, also where a worker was behind and had another step
    to make first.

    Args:
        struck_s: when the signal was sent.
        followed: the iteration from which on a newcomer follows the others.
        entered: the iteration from which on another number of workers takes part.
    """
    ordinary = gaps(steps, WARM_UP + 1, STRUCK_AT)
    if event.wait == "next step":
        next_s = [at_s for one in steps.values() for iteration, at_s in one if iteration == STRUCK_AT]
        wait_s = max(next_s, default=math.inf) - struck_s
    else:
        wait_s = max(gaps(steps, followed, entered + SETTLED))
    made = [[iteration for iteration, _ in one] for one in steps.values()]
    whole = set(range(max(map(max, made)) + 1 if event.comes_back else ITERATIONS))
    return Outcome(
        iteration_s=statistics.median(ordinary),
        wait_s=wait_s,
        lost=sum(len(whole.difference(one)) for one in made),
        repeated=sum(len(one) - len(set(one)) for one in made),
        equal=equal,
    )


def gaps(steps: Mapping[int, Steps], first: int, end: int) -> list[float]:
    """The time from the step before to each of these steps, of all workers."""
    pairs = [pair for one in steps.values() for pair in itertools.pairwise(one)]
    return [after - before for (_, before), (iteration, after) in pairs if first <= iteration < end]
