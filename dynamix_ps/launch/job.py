"""One run from the cluster file to its summary. Reads top to bottom."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dynamix_ps.cgroups import available_cores
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.exit_codes import print_error
from dynamix_ps.launch.cleanup import release, release_stale
from dynamix_ps.launch.emulate import Emulation, choose_emulation
from dynamix_ps.launch.holdings import Holdings, make_scratch, new_scratch_path, new_shm_prefix, start_of
from dynamix_ps.launch.interrupts import Interrupts
from dynamix_ps.launch.logs import PrefixedOutput
from dynamix_ps.launch.network_probe import network_probe
from dynamix_ps.launch.observe import Observer
from dynamix_ps.launch.placement import Placement, ThisMachine
from dynamix_ps.launch.plan import RunPlace, as_shell, plan_roles
from dynamix_ps.launch.preflight import preflight
from dynamix_ps.launch.reaper import Reaper
from dynamix_ps.launch.supervise import Supervisor
from dynamix_ps.launch.verdict import Ending, Limits, interrupted
from dynamix_ps.report.live.view import LiveView
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import write_report
from dynamix_ps.report.summary import Outcome
from dynamix_ps.report.summary_text import headline
from dynamix_ps.run_record.manifest import write_manifest
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.terminal import print_line

ON_THIS_MACHINE = ThisMachine()


def run_job(
    config: Config, argv: Sequence[str], resume: Path | None, console: Console, placement: Placement = ON_THIS_MACHINE
) -> int:
    """Run all roles of `config` on this machine to their end; returns the launcher's exit code.

    `argv` is the command line, for the manifest. `placement` places the roles and changes what is around them.
    Everything a run leaves is in its run folder.

    Raises:
        DynamixError: it could not even begin; there is no run folder then.
    """
    preflight(config, resume)
    resume = resume and resume.resolve()  # before `latest` in its path becomes this run
    release_stale()
    run_id = secrets.token_hex(4)
    folder = _make_folder(config, run_id, argv)
    _say(console, f"run folder: {folder.path}")
    recorder = Recorder(folder, config)
    with Interrupts() as interrupts:
        run = _Run(config, folder, recorder, run_id, resume, console, interrupts, placement)
        try:
            ending = run.to_its_end()
        except DynamixError as error:
            ending = Ending(error.exit_code, str(error))
        return run.conclude(ending)


def dry_run(config: Config, config_file: Path, resume: Path | None, console: Console) -> None:
    """Print the environment and the command line of every role, one line each, ready for a shell. Starts nothing."""
    run_id = secrets.token_hex(4)
    ports = ON_THIS_MACHINE.ports(config.cluster)
    run_dir = Path(config.run_dir).absolute() / "dry-run"
    place = _make_place(run_id, config_file.absolute(), run_dir, resume, ports)
    emulation = Emulation("none", "", ())
    if config.emulation == "hook":
        emulation = choose_emulation(config, run_id, available_cores())
    place = _with_speeds(place, emulation)
    for spec in plan_roles(config, place, os.environ, sys.executable):
        print_line(console, Text(f"# {spec.name}"))
        print_line(console, Text(as_shell(spec)))


def _make_folder(config: Config, run_id: str, argv: Sequence[str]) -> RunFolder:
    folder = RunFolder.create(Path(config.run_dir), config.name, datetime.now(timezone.utc), run_id)
    try:
        folder.write_config(config)
        write_manifest(folder, config, argv)
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {error.filename or folder.path}: {error.strerror}") from error
    folder.link_latest()
    return folder


def _make_place(run_id: str, config_file: Path, run_dir: Path, resume: Path | None, ports: tuple[int, int]) -> RunPlace:
    port, arbitrator_port = ports
    return RunPlace(
        run_id=run_id,
        token=secrets.token_hex(16),
        config_file=config_file,
        run_dir=run_dir,
        scratch=new_scratch_path(run_id),
        shm_prefix=new_shm_prefix(run_id),
        cwd=Path.cwd(),
        port=port,
        arbitrator_port=arbitrator_port,
        cores=len(os.sched_getaffinity(0)),
        resume=resume and resume.resolve(),
    )


def _with_speeds(place: RunPlace, emulation: Emulation) -> RunPlace:
    return replace(place, slowdowns=emulation.slowdowns, speeds_emulated=emulation.method != "none")


class _Run:
    """One run in its folder: start, supervise, clean up, conclude."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        recorder: Recorder,
        run_id: str,
        resume: Path | None,
        console: Console,
        interrupts: Interrupts,
        placement: Placement,
    ) -> None:
        self._config, self._folder, self._recorder = config, folder, recorder
        self._run_id, self._resume = run_id, resume
        self._console, self._interrupts, self._placement = console, interrupts, placement
        self._heterogeneity = "none: the run did not begin"
        self._last_lines: dict[str, tuple[str, ...]] = {}
        self._notes: list[str] = []

    def to_its_end(self) -> Ending:
        """Raises DynamixError when the roles could not be started."""
        config, folder = self._config, self._folder
        ports = self._placement.ports(config.cluster)
        place = _make_place(self._run_id, folder.config_file, folder.path, self._resume, ports)
        emulation = choose_emulation(config, self._run_id, available_cores())
        self._heterogeneity = emulation.description
        place = _with_speeds(place, emulation)
        holdings = Holdings(
            run_id=place.run_id,
            shm_prefix=place.shm_prefix,
            scratch=str(place.scratch),
            cgroups=tuple(map(str, emulation.groups)),
            launcher_pid=os.getpid(),
            launcher_start=start_of(os.getpid()),
        )
        reaper = Reaper(holdings, self._recorder)
        try:
            make_scratch(place.scratch, sockets=len(config.cluster.workers))
            holdings.save()
            emulation.create()
            return self._supervise(place, emulation, reaper)
        except OSError as error:
            raise EnvironmentNotReady(f"cannot prepare the run: {error}") from error
        finally:
            release(holdings)
            reaper.close()

    def _supervise(self, place: RunPlace, emulation: Emulation, reaper: Reaper) -> Ending:
        log_file = self._folder.log_file("probe")
        with (
            LiveView(self._recorder.state, self._console) as live,
            network_probe(self._config, place.run_id, place.scratch, log_file, self._recorder) as probe,
        ):
            if self._interrupts.count:
                return interrupted(self._interrupts.first)
            planned = plan_roles(self._config, replace(place, probe=probe), os.environ, sys.executable)
            roles = tuple(map(self._placement.place, planned))
            self._recorder.event("launch", roles=[role.name for role in roles], emulation=emulation.description)
            observer = Observer(self._recorder, live, emulation, self._placement, reaper.check)
            supervisor = Supervisor(
                roles=roles,
                environ=os.environ,
                logs_dir=self._folder.logs_dir,
                show=PrefixedOutput(self._console, [role.name for role in roles]),
                observe=observer,
                interrupts=self._interrupts,
                limits=Limits.of(self._config.timeouts),
                groups={f"worker-{rank}": group for rank, group in enumerate(emulation.groups)},
            )
            ending = supervisor.run()
        self._last_lines = {name: supervisor.last_lines(name) for name in ending.culprits}
        if observer.problem:
            self._notes.append(observer.problem)
        return ending

    def conclude(self, ending: Ending) -> int:
        """Tell the cause of a failure, record the end, write the report; returns the exit code.

        A run that failed or was interrupted ends without plots, as drawing takes seconds; `dynamix report` draws them.
        """
        self._notes.extend(ending.notes)
        if ending.exit_code != 0:
            self._tell_cause(ending)
        plots = ending.exit_code == 0
        try:
            self._recorder.event("end", exit_code=ending.exit_code, reason=ending.reason, notes=self._notes)
            self._recorder.close()
            outcome = Outcome(ending.exit_code, ending.reason, self._heterogeneity, tuple(self._notes))
            summary = write_report(self._folder, self._config, outcome, plots)
        except OSError as error:
            self._notes.append(f"the summary could not be written: {error}")
            summary = {}
        self._tell_result(ending, summary, plots)
        return ending.exit_code

    def _tell_cause(self, ending: Ending) -> None:
        for name, lines in self._last_lines.items():
            _say(self._console, f"last lines of {name} ({self._folder.log_file(name)}):")
            for line in lines or ("(it printed nothing)",):
                _say(self._console, f"  {line}")
        print_error(ending.reason)

    def _tell_result(self, ending: Ending, summary: dict[str, Any], plots: bool) -> None:
        for note in summary.get("degraded") or self._notes:
            _say(self._console, f"warning: {note}")
        if summary:
            for line in headline(summary)[ending.exit_code != 0 :]:  # the cause of a failure was told before
                _say(self._console, line)
            _say(self._console, f"summary: {self._folder.summary_md}")
        if summary and not plots:
            _say(self._console, f"for plots, run: dynamix report {self._folder.path}")


def _say(console: Console, line: str) -> None:
    print_line(console, Text(line))
