"""The runs of a race of rates: each a process that begins the user's script, with a factor on its rate (rate_trial.py).

Every run begins the training anew, with the same seed, so there is no state to copy and to put back. It ends when its
record has what the race needs, before the script comes to its own end.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dynamix_ps.apportion import apportion
from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config, Elastic, PolicySection
from dynamix_ps.errors import DIVERGED, JobFailed, UsageError
from dynamix_ps.rehearsal.processes import some_at_a_time
from dynamix_ps.rehearsal.rate_race import FRACTION, JUDGED, TRAINED, RateRace
from dynamix_ps.rehearsal.rate_trial import EVENT, RECORDED
from dynamix_ps.rehearsal.scenarios import scenario_for
from dynamix_ps.rehearsal.script_run import start_script, why_useless
from dynamix_ps.run_record.json_lines import UNUSABLE, JsonLinesTail, Line
from dynamix_ps.run_record.run_folder import RunFolder

STEADY = 1.5  # by what factor the script's own rate may change during a race (chosen by us)


def race_config(config: Config, seed: int) -> Config:
    """Of a run: fixed sizes, a fraction of the first ones, at the rate that the script sets; a record of each
    iteration."""
    first = config.initial_sizes()
    sizes = apportion(max(sum(first) // FRACTION, len(first)), first, low=[1] * len(first))
    limits = {"min": None, "max": None, "at_once": None}
    workers = tuple(
        worker.model_copy(update={**limits, "batch": size})
        for worker, size in zip(config.cluster.workers, sizes, strict=True)
    )
    return config.model_copy(
        update={
            "cluster": config.cluster.model_copy(update={"workers": workers}),
            "batch": config.batch.model_copy(update={"min": 0, "at_once": None}),
            "policy": PolicySection(name="static"),
            "window": 1,
            "lr": "follow",
            "lr_rule": "none",
            "overlap": "backward",
            "elastic": Elastic(),
            "checkpoint_every": 0,
            "checkpoint_on_term": False,
            "seed": seed,
        }
    )


@dataclass(slots=True)
class _Trial:
    """What the record of a run tells. `rates`: the script's own, at the first step and at the last that trains."""

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of judged iterations
    trained: int = 0  # iterations
    passes: float = 0.0  # over the data
    broken: bool = False
    _judged_from: float = math.inf  # iteration

    def add(self, line: Line) -> None:
        """Raises what `UNUSABLE` names if the line lacks what its kind has."""
        if line["kind"] == EVENT:
            self.rates.append(float(line["rate"]))
            self._judged_from = line["iteration"] + 1 if len(self.rates) > 1 else math.inf
        elif line["kind"] == "window":
            self.trained, self.passes = line["first_iteration"] + 1, line["epoch"] or 0.0
            self.broken |= line["global_loss"] is None
            if line["first_iteration"] >= self._judged_from and not self.broken:
                self.losses.append(float(line["global_loss"]))
        elif line["kind"] == "failed":
            self.broken |= DIVERGED in line["error"]

    @property
    def loss(self) -> float:
        """Mean of averaged weights on samples that they have not seen."""
        return math.inf if self.broken else sum(self.losses) / len(self.losses)


@dataclass(frozen=True, slots=True)
class RateRuns:
    """A race in a folder."""

    folder: Path
    config: Config  # as `race_config` makes it, with the command of the script

    def run(self, jobs: int) -> tuple[RateRace, float]:
        """Race, `jobs` rates at a time. Returns the race, and the script's rate.

        Raises:
            JobFailed: a run fails in another way than by an infinite loss.
            UsageError: the script trains too little, or changes its rate meanwhile.
        """
        race, rate = RateRace(), math.nan
        while octaves := race.missing():
            for octave, trial in self._try(octaves, jobs).items():
                race.add(octave, trial.loss)
                rate = trial.rates[0] if trial.rates else rate
        return race, rate

    def _try(self, octaves: Collection[int], jobs: int) -> dict[int, _Trial]:
        scenario = scenario_for(self.config, None)

        def start(octave: int) -> subprocess.Popen[bytes]:
            own = {variables.RATE_TRIAL: str(2.0**octave)}
            return start_script(self._folder_of(octave), self.config, scenario, **own)

        trials = {}
        with closing(some_at_a_time(octaves, jobs, start, lambda _: None)) as ended:
            for octave, exit_code in ended:
                trials[octave] = trial = _Trial()
                folder = self._folder_of(octave)
                for line in JsonLinesTail(folder.worker_file(0)).read():
                    with suppress(*UNUSABLE):
                        trial.add(line)
                _check(trial, folder, exit_code)
        return trials

    def _folder_of(self, octave: int) -> RunFolder:
        return RunFolder(self.folder / f"rate-{2.0**octave:g}")


def _check(trial: _Trial, folder: RunFolder, exit_code: int) -> None:
    """Raises what `RateRuns.run` raises."""
    if not trial.broken and len(trial.losses) < JUDGED:
        if exit_code or not trial.trained:
            raise JobFailed(f"a run of the race failed, {why_useless(folder, exit_code)}")
        raise UsageError(
            f"the script ends after {trial.trained} iterations with 1/{FRACTION} of its batch; a race of rates needs "
            f"{TRAINED + JUDGED + RECORDED + 1}: train for more epochs"
        )
    if trial.passes > 1:
        raise UsageError(
            f"a race of rates needs {TRAINED + JUDGED + 1} batches of 1/{FRACTION} of the first sizes that come once, "
            f"got {trial.passes:.2g} passes over the data in them: rehearse with smaller sizes"
        )
    if trial.rates and max(trial.rates) > STEADY * min(trial.rates):
        raise UsageError(
            f"the script changes its own learning rate from {trial.rates[0]:.3g} to {trial.rates[-1]:.3g} in the first "
            f"{TRAINED} iterations, so that a race would judge this change; race without warm-up, at the rate that "
            "follows it"
        )
