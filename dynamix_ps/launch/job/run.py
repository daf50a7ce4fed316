"""One run from the cluster file to its summary, as the launcher sees it. Reads top to bottom."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dynamix_ps.cgroups import available_cores
from dynamix_ps.config import variables
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.exit_codes import print_error
from dynamix_ps.launch.cleanup.holdings import new_scratch_path, new_shm_prefix
from dynamix_ps.launch.emulation.speeds import Emulation, choose_emulation
from dynamix_ps.launch.host.agent import LEASE_S
from dynamix_ps.launch.job.code_sync import send_code
from dynamix_ps.launch.job.elastic_hosts import ElasticHosts
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.observe import Observer
from dynamix_ps.launch.job.shown_output import PrefixedOutput
from dynamix_ps.launch.job.start_over import start_over
from dynamix_ps.launch.job.supervise import Supervisor
from dynamix_ps.launch.job.verdict import Ending, Limits, interrupted
from dynamix_ps.launch.preflight.host_checks import host_checks
from dynamix_ps.launch.preflight.host_table import host_lines
from dynamix_ps.launch.preflight.late_host import Fit
from dynamix_ps.launch.preflight.launch_checks import expected_of_hosts, preflight
from dynamix_ps.launch.roles.authority import Authority, is_encrypted, is_exposed
from dynamix_ps.launch.roles.placement import Placement, ThisMachine
from dynamix_ps.launch.roles.plan import RunPlace, as_shell, hosts_with_roles, job_roles, plan_roles
from dynamix_ps.launch.roles.ports import choose_ports
from dynamix_ps.launch.targets.agent_link import OwnProcess, Target
from dynamix_ps.launch.targets.choice import Allocation, target_of
from dynamix_ps.metrics.gpu import gpu_models
from dynamix_ps.report.live.view import LiveView
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import report_afterwards, write_report
from dynamix_ps.report.summary import Outcome
from dynamix_ps.report.summary_text import headline
from dynamix_ps.run_record.manifest import write_manifest
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.terminal import print_line, printable

ON_THIS_MACHINE = ThisMachine()
EXPOSED = "insecure is set: calls between hosts go unencrypted"


def run_job(
    config: Config,
    argv: Sequence[str],
    resume: Path | None,
    console: Console,
    placement: Placement = ON_THIS_MACHINE,
    target: Target | None = None,
    given: Allocation | None = None,
    waits: bool = True,
) -> int:
    """Run all roles of `config` on their hosts to their end; returns the launcher's exit code.

    Everything a run leaves is in its run folder. With `elastic.restarts`, a job that is lost as a whole begins again,
    in another run folder.

    Args:
        argv: the command line, for the manifest.
        placement: where the roles run within this machine and what changes around them, for a job on this machine.
        target: how the launcher reaches the hosts; by default through the batch system that has `given` them, or ssh.
        waits: for the plots; else another process draws them afterwards.

    Raises:
        DynamixError: the run could not begin; there is no run folder then.
    """
    preflight(config, resume)
    config = resolved(config)
    resume = resume and resume.resolve()  # before `latest` in its path becomes this run
    with Interrupts() as interrupts:
        starts = 0
        while True:
            way = target or target_of(config, placement, given)
            authority = Authority.of_run(config)
            records = _begin_records(config, argv)
            _say(console, f"run folder: {records.folder.path}")
            if starts:
                records.recorder.event("job_restarted", restarts=starts, checkpoint=str(resume))
            run = _Run(config, records, resume, console, interrupts, placement, way, authority)
            try:
                ending = run.to_its_end()
            except DynamixError as error:
                ending = Ending(error.exit_code, str(error))
            code = run.conclude(ending, waits)
            if not ending.by_loss:
                return code
            checkpoint = records.folder.newest_checkpoint() or resume
            say = partial(_say, console)
            again = start_over(config, run.hosts_given_up, checkpoint, starts, interrupts, say)
            if again is None:
                return code
            config, resume = again
            starts += 1


def dry_run(config: Config, config_file: Path, resume: Path | None, console: Console) -> None:
    """Print the environment and the command line of every role, one line each, ready for a shell. Starts nothing."""
    run_id = secrets.token_hex(4)
    config = resolved(config)
    cluster = config.cluster
    here = cluster.model_copy(update={"host": "127.0.0.1"}) if cluster.hosts else cluster  # ports are those of its home
    ports = choose_ports(here, random.Random())
    run_dir = Path(config.run_dir).absolute() / "dry-run"
    place = _make_place(run_id, config_file.absolute(), run_dir, resume, ports)
    emulation = Emulation("none", "", ())
    if config.emulation == "hook":
        emulation = choose_emulation(config, run_id, available_cores())
    place = replace(place, slowdowns=emulation.slowdowns, speeds_emulated=emulation.method != "none")
    if is_encrypted(config):
        place = replace(place, certificates=place.scratch / "certificates")
    for host in hosts_with_roles(config):
        for spec in plan_roles(config, replace(place, host=host), os.environ, sys.executable):
            if spec.later:
                continue
            print_line(console, Text(f"# {spec.name}{f' on {host}' if cluster.hosts else ''}"))
            print_line(console, Text(as_shell(spec)))


@dataclass(frozen=True, slots=True)
class _Records:
    """The name of a run, and where its records go."""

    run_id: str
    folder: RunFolder
    recorder: Recorder


def _begin_records(config: Config, argv: Sequence[str]) -> _Records:
    run_id = secrets.token_hex(4)
    folder = RunFolder.create(Path(config.run_dir), config.name, datetime.now(timezone.utc), run_id)
    try:
        folder.write_config(config)
        write_manifest(folder, config, argv)
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {error.filename or folder.path}: {error.strerror}") from error
    folder.link_latest()
    return _Records(run_id, folder, Recorder(folder, config))


def _make_place(run_id: str, config_file: Path, run_dir: Path, resume: Path | None, ports: tuple[int, int]) -> RunPlace:
    port, arbitrator_port = ports
    return RunPlace(
        run_id=run_id,
        token=secrets.token_hex(16),
        config_file=config_file,
        run_dir=run_dir,
        scratch=new_scratch_path(run_id),
        shm_prefix=new_shm_prefix(run_id),
        port=port,
        arbitrator_port=arbitrator_port,
        cores=len(os.sched_getaffinity(0)),
        gpus=len(gpu_models()),
        resume=resume and resume.resolve(),
    )


class _Run:
    """One run in its folder: start, supervise, clean up, conclude."""

    def __init__(
        self,
        config: Config,
        records: _Records,
        resume: Path | None,
        console: Console,
        interrupts: Interrupts,
        placement: Placement,
        target: Target,
        authority: Authority | None,
    ) -> None:
        self._config, self._folder, self._recorder = config, records.folder, records.recorder
        self._target, self._authority = target, authority
        self._run_id, self._resume = records.run_id, resume
        self._console, self._interrupts, self._placement = console, interrupts, placement
        self._heterogeneity = "none: the run did not begin"
        self._last_lines: dict[str, tuple[str, ...]] = {}
        self._notes: list[str] = []
        self.hosts_given_up: frozenset[str] = frozenset()

    def to_its_end(self) -> Ending:
        """Raises DynamixError when the roles could not be started."""
        show = PrefixedOutput(self._console, [role.name for role in job_roles(self._config)])
        hosts = ElasticHosts(
            self._config, self._folder, self._target, self._recorder, show, self._interrupts, self._authority
        )
        try:
            return self._supervise(hosts, show)
        except OSError as error:
            raise EnvironmentNotReady(f"cannot prepare the run: {error}") from error
        finally:
            self.hosts_given_up = hosts.given_up
            hosts.finish()
            show.finish()
            if hosts.problem:
                self._notes.append(hosts.problem)
            if hosts.unconfirmed:
                left = ", ".join(hosts.unconfirmed)
                self._notes.append(f"host {left} ends what it runs by itself, {LEASE_S:g} s after it was lost")

    def _supervise(self, hosts: ElasticHosts, show: PrefixedOutput) -> Ending:
        with LiveView(self._recorder.state, self._console) as live:
            ready = self._copy_code(hosts) and self._hosts_fit(hosts)
            if not ready or not hosts.prepare(self._run_id, secrets.token_hex(16), self._resume):
                return interrupted(self._interrupts.first)
            self._heterogeneity = hosts.emulation
            given = self._resume and str(self._resume)
            self._recorder.event("launch", roles=list(hosts.roles), emulation=hosts.emulation, resume=given)
            if is_exposed(self._config):
                self._recorder.event("degraded", what="encryption", detail=EXPOSED)
            observer = Observer(self._recorder, live, hosts, self._placement, show)
            limits = Limits.of(self._config.timeouts, len(hosts.names), self._config.is_elastic)
            supervisor = Supervisor(hosts, show, observer, self._interrupts, limits)
            ending = supervisor.run()
        self._last_lines = {name: supervisor.last_lines(name) for name in ending.culprits}
        if observer.problem:
            self._notes.append(observer.problem)
        return ending

    def _copy_code(self, hosts: ElasticHosts) -> bool:
        """Returns False if a signal has come. Raises EnvironmentNotReady."""
        if self._config.sync == "none":
            return True
        _say(self._console, "sync: rsync: copying the code to the other hosts")
        return send_code(self._config, self._target, hosts.names, os.environ, lambda: self._interrupts.count > 0)

    def _hosts_fit(self, hosts: ElasticHosts) -> bool:
        """Check that the other hosts have what the run needs and reach each other, before anything starts.

        Returns False if a signal has come. Raises EnvironmentNotReady where the hosts do not fit.
        """
        if isinstance(self._target, OwnProcess):
            return True
        report = hosts.inspect()
        if report is None:
            return False
        expected = expected_of_hosts(self._config, code_is_there=True)
        found = host_checks(report, self._config, expected)
        blockers = [str(check) for check in found if check.status == "blocker"]
        for line in host_lines(report) if blockers else ():
            _say(self._console, line)
        for check in found[len(blockers) :]:
            _say(self._console, f"warning: {check}")
        if blockers:
            raise EnvironmentNotReady("\n".join(blockers))
        hosts.compare_later(Fit(report, expected))
        _say(self._console, f"hosts: {len(hosts.names)}, which have what the job needs and reach each other")
        return True

    def conclude(self, ending: Ending, waits: bool) -> int:
        """Print the cause of a failure, record the end, write the report; returns the exit code.

        A run that failed or was interrupted ends without plots, as drawing takes seconds; `dynamix report` draws them.
        So does every run where the shell says so.
        """
        self._notes.extend(ending.notes)
        if ending.exit_code != 0:
            self._tell_cause(ending)
        plots = ending.exit_code == 0 and variables.get(variables.PLOTS) != "no"
        try:
            self._folder.remove_partial_checkpoints()
            self._recorder.event("end", exit_code=ending.exit_code, reason=ending.reason, notes=self._notes)
            self._recorder.close()
            outcome = Outcome(ending.exit_code, ending.reason, self._heterogeneity, tuple(self._notes))
            summary = write_report(self._folder, self._config, outcome, plots and waits)
        except OSError as error:
            self._notes.append(f"the summary could not be written: {error}")
            summary = {}
        self._tell_result(ending, summary)
        if summary and plots and not waits:
            _say(self._console, f"plots: in a few seconds, in {self._folder.plots_dir}")
            report_afterwards(self._folder)
        elif summary and not plots:
            _say(self._console, f"for plots, run: dynamix report {self._folder.path}")
        return ending.exit_code

    def _tell_cause(self, ending: Ending) -> None:
        for name, lines in self._last_lines.items():
            _say(self._console, f"last lines of {name} ({self._folder.log_file(name)}):")
            for line in lines or ("(it printed nothing)",):
                print_line(self._console, Text("  ") + printable(line))
        print_error(ending.reason)

    def _tell_result(self, ending: Ending, summary: dict[str, Any]) -> None:
        for note in summary.get("degraded") or self._notes:
            _say(self._console, f"warning: {note}")
        if summary:
            for line in headline(summary)[ending.exit_code != 0 :]:  # the cause of a failure was told before
                _say(self._console, line)
            _say(self._console, f"summary: {self._folder.summary_md}")
            _say(self._console, f"page: {self._folder.report_html}")


def _say(console: Console, line: str) -> None:
    print_line(console, Text(line))
