"""One job of the study of membership: four workers on real BytePS, one of which a signal strikes.

Workers note on the monotonic clock, which all processes of a machine share, when a step was complete.
"""

from __future__ import annotations

import itertools
import math
import signal
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.launching import launched
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Elastic, Metrics, Policy, Server, Worker

WORKERS, SERVERS, BATCH = 4, 2, 8
ITERATIONS, STRUCK_AT, WARM_UP = 40, 20, 5
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a signal in the middle of an iteration cost the others.

    Attributes:
        iteration_s: median time of an iteration before.
        next_step_s: from the signal to the next step, of the last of the others.
        lost: steps that one of them did not make.
        repeated: steps that one of them made more than once.
        equal: the weights of all of them are, bit for bit.
    """

    iteration_s: float
    next_step_s: float
    lost: int
    repeated: int
    equal: bool

    @property
    def beyond_s(self) -> float:
        """The time to the next step beyond one ordinary iteration."""
        return self.next_step_s - self.iteration_s


Steps = Sequence[tuple[int, float]]  # number of the iteration, and when its step was complete


def steps_file(folder: Path, rank: int) -> Path:
    """The steps of a worker, one a line."""
    return folder / f"steps-{rank}"


def struck_file(folder: Path) -> Path:
    """When the signal was sent."""
    return folder / "struck"


def weights_file(folder: Path, rank: int) -> Path:
    """A digest of the last weights of a worker."""
    return folder / f"weights-{rank}"


def run_job(number: signal.Signals, struck: int) -> Outcome:
    """Run one job, in which signal `number` strikes the worker with rank `struck`.

    Raises:
        SystemExit: the job failed; its output is in the text.
        TimeoutExpired: it took longer than LIMIT_S.
    """
    with tempfile.TemporaryDirectory(prefix="dx-membership-") as name:
        folder = Path(name)
        launched(config_of(folder, number, struck), folder, LIMIT_S)
        others = [rank for rank in range(WORKERS) if rank != struck]
        steps = {rank: _read(steps_file(folder, rank)) for rank in others}
        weights = {weights_file(folder, rank).read_text() for rank in others}
        return outcome_of(float(struck_file(folder).read_text()), steps, len(weights) == 1)


def config_of(folder: Path, number: signal.Signals, struck: int) -> Config:
    """The cluster file, with which all that is written comes to `folder`."""
    options = {"iterations": ITERATIONS, "struck": struck, "at": STRUCK_AT, "signal": int(number), "out": folder}
    return Config(
        name="membership",
        run_dir=str(folder / "runs"),
        cluster=Cluster(servers=(Server(),) * SERVERS, workers=(Worker(batch=BATCH),) * WORKERS),
        batch=BatchBounds(min=1, max=4 * BATCH),
        elastic=Elastic(min_workers=WORKERS - 1),
        window=10,
        policy=Policy(name="static"),
        metrics=Metrics(network="off", tensorboard=False),
        command=(
            *("python", "-m", "benchmarks.studies.membership_worker"),
            *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        ),
    )


def _read(file: Path) -> Steps:
    pairs = (line.split() for line in file.read_text().splitlines())
    return [(int(iteration), float(at_s)) for iteration, at_s in pairs]


def outcome_of(struck_s: float, steps: Mapping[int, Steps], equal: bool) -> Outcome:
    """From the steps of those that were not struck, by rank.

    The iteration in which the signal came cannot end without what the worker that was struck had not sent yet. So its
    step is the first that shows the loss, also where a worker was behind and had another step to make first.
    """
    ordinary = [itertools.pairwise(one[WARM_UP:STRUCK_AT]) for one in steps.values()]
    made = [[iteration for iteration, _ in one] for one in steps.values()]
    next_s = [at_s for one in steps.values() for iteration, at_s in one if iteration == STRUCK_AT]
    return Outcome(
        iteration_s=statistics.median(after - before for one in ordinary for (_, before), (_, after) in one),
        next_step_s=max(next_s, default=math.inf) - struck_s,
        lost=sum(len(set(range(ITERATIONS)).difference(one)) for one in made),
        repeated=sum(len(one) - len(set(one)) for one in made),
        equal=equal,
    )
