"""The runs of `dynamix rehearse`: every policy on every scenario with every seed, each a process of its own.

A run leaves a run folder like that of a real job. A study that is started again in its folder goes on: runs that are
over are not repeated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config, PolicySection
from dynamix_ps.errors import EnvironmentNotReady, JobFailed, UsageError
from dynamix_ps.rehearsal.outcome import RehearsalOutcome, read_outcome
from dynamix_ps.rehearsal.processes import some_at_a_time
from dynamix_ps.rehearsal.script_run import start_script, why_useless
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario

OnProgress = Callable[[float], None]  # runs that are over, parts of runs included


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study."""

    scenario: str
    policy: str
    seed: int

    def __str__(self) -> str:
        return f"policy {self.policy}, scenario {self.scenario}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Study:
    """What is to be run, in which folder. `command` is the script's."""

    folder: Path
    config: Config
    scenarios: Sequence[Scenario]
    policies: Sequence[str]
    seeds: Sequence[int]
    command: Sequence[str]

    @property
    def runs(self) -> list[StudyRun]:
        """Seed by seed, so that a study that is cut off can compare what it has."""
        return [
            StudyRun(scenario.name, policy, seed)
            for seed in self.seeds
            for scenario in self.scenarios
            for policy in self.policies
        ]

    def folder_of(self, run: StudyRun) -> RunFolder:
        return RunFolder(self.folder / run.scenario / run.policy.replace(":", ".") / f"seed-{run.seed}")

    def outcomes(self) -> dict[StudyRun, RehearsalOutcome]:
        """Of the runs that are over."""
        found = {run: read_outcome(self.folder_of(run)) for run in self.runs}
        return {run: outcome for run, outcome in found.items() if outcome is not None}

    def check_settings(self) -> None:
        """Keep what decides the runs in the folder; policies and seeds may be added later.

        Raises:
            UsageError: the folder is of another study.
            EnvironmentNotReady: it cannot be written.
        """
        file = self.folder / "study.yaml"
        config = self.config.model_copy(update={"command": tuple(self.command)})
        text = "---\n".join([dump_config(config), *map(dump_scenario, self.scenarios)])
        try:
            if file.exists() and file.read_text(encoding="utf-8") != text:
                raise UsageError(
                    f"{self.folder} is of another study: cluster file, scenarios or command have changed since; "
                    "give another folder with --out"
                )
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise EnvironmentNotReady(
                f"cannot write {self.folder}: {error.strerror or error}; give another folder with --out"
            ) from error

    def _config_of(self, policy: str, seed: int) -> Config:
        chosen = self.config.policy if policy == self.config.policy.name else PolicySection(name=policy)
        return self.config.model_copy(update={"policy": chosen, "seed": seed, "command": tuple(self.command)})

    def start(self, run: StudyRun) -> subprocess.Popen[bytes]:
        """Start the process of a run. What an earlier attempt has left is removed."""
        scenario = next(one for one in self.scenarios if one.name == run.scenario)
        return start_script(self.folder_of(run), self._config_of(run.policy, run.seed), scenario)

    def run_missing(self, jobs: int, on_progress: OnProgress) -> None:
        """Make all runs that are not over, `jobs` at a time.

        The first that cannot be used ends the study, and the others are stopped.

        Raises:
            JobFailed: a run fails in another way than by an infinite loss.
            UsageError: a run has too few evaluations.
        """
        known = self.outcomes()
        for run, outcome in known.items():
            outcome.check_evaluations(run)
        over = set(known)
        progress: dict[StudyRun, _Progress] = {}

        def start(run: StudyRun) -> subprocess.Popen[bytes]:
            process = self.start(run)
            progress[run] = _Progress(self.folder_of(run))
            return process

        def tell(running: Collection[StudyRun]) -> None:
            on_progress(len(over) + sum(progress[run].trained_part() for run in running))

        waiting = [run for run in self.runs if run not in over]
        with closing(some_at_a_time(waiting, jobs, start, tell)) as ended:
            for run, exit_code in ended:
                self.check(run, exit_code)
                over.add(run)

    def check(self, run: StudyRun, exit_code: int) -> None:
        """For a run that has ended.

        Raises:
            JobFailed: it failed; with the end of its log.
            UsageError: it has too few evaluations.
        """
        folder = self.folder_of(run)
        if (outcome := read_outcome(folder)) is not None:
            outcome.check_evaluations(run)
            return
        raise JobFailed(f"the rehearsed run of {run} failed, {why_useless(folder, exit_code)}")


class _Progress:
    """Of a run under way."""

    def __init__(self, folder: RunFolder) -> None:
        self._lines = JsonLinesTail(folder.worker_file(0))
        self._part = 0.0

    def trained_part(self) -> float:
        """How much of the training is done, as its newest window tells; 0 where it does not."""
        for line in self._lines.read():
            if line["kind"] == "window":
                self._part = line.get("trained_ratio") or 0.0
        return self._part
