"""Begins the run of a job that another launcher has started: on rank 0, and on machines without rank 0."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dynamix_ps import own_process
from dynamix_ps.addresses import host_port
from dynamix_ps.certificates import OFF
from dynamix_ps.config import variables
from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady, PeerLostError
from dynamix_ps.launch.cleanup.holdings import Holdings, make_scratch, new_scratch_path, new_shm_prefix
from dynamix_ps.launch.cleanup.release import release_stale
from dynamix_ps.other_launchers.attempts import checkpoint_of_earlier_attempt
from dynamix_ps.other_launchers.duty import DONE, Duty
from dynamix_ps.other_launchers.job import StartedJob
from dynamix_ps.other_launchers.job_config import Wish, agreed, on_hosts, with_unencrypted_calls
from dynamix_ps.other_launchers.roles_here import Environments, roles_here
from dynamix_ps.policy.registry import findings_at_start
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.process.failure import end_beside_training

_OF_A_WORKER = ("DMLC_ROLE", "DMLC_WORKER_ID", variables.ATTACHED, variables.ROLE_NAME, variables.RESUME)


def begin_run(job: StartedJob, wishes: Sequence[Wish]) -> tuple[dict[str, Any], Environments]:
    """Make the run folder, and start the companion. Returns what the workers need, and what those here need beside.

    Raises DynamixError: the configuration is wrong, or the folder cannot be made.
    """
    file = variables.get(variables.CONFIG)
    config = agreed(wishes, file, load_config(file, findings_at_start) if file else None)
    run_id, token = secrets.token_hex(4), variables.get(variables.TOKEN) or secrets.token_hex(16)
    exposed = len(job.machines) > 1 and config.has_arbitrator and variables.get(variables.TLS) is None
    if exposed:
        config = with_unencrypted_calls(config)
    config = on_hosts(config, list(job.machines.values()), [wish.address for wish in wishes])
    resume = _checkpoint(job, Path(config.run_dir))
    folder = RunFolder.create(Path(config.run_dir), config.name, datetime.now(timezone.utc), run_id)
    environment = {
        variables.CONFIG: str(folder.config_file),
        variables.RUN_DIR: str(folder.path),
        variables.RUN_ID: run_id,
        variables.WIRE: config.cluster.wire,
    }
    if config.has_arbitrator:
        environment[variables.ARBITRATOR] = host_port(*job.arbitrator)
        if len(job.machines) == 1:
            environment[variables.TLS] = OFF
    if variables.get(variables.TOKEN) is None:
        environment[variables.TOKEN] = token
    os.environ.update(environment)
    try:
        folder.write_config(config)
        scratch = make_scratch(new_scratch_path(run_id), sockets=0)
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {error.filename or folder.path}: {error.strerror}") from error
    folder.link_latest()
    if resume is not None:
        os.environ[variables.RESUME] = str(resume)
    away = len(job.machines) - 1
    listener = _listener(job.arbitrator[0]) if away else None
    launch = {
        "launcher": job.place.launcher,
        "attempt": job.place.attempt,
        "agents": sorted({one.agent for one in job.processes}),
        "resume": resume and str(resume),
    }
    number = listener.fileno() if listener else None
    here = _begin_here(
        "records",
        job,
        config,
        folder,
        scratch,
        away=away,
        launch=launch,
        argv=sys.argv,
        exposed=exposed,
        listener=number,
    )
    records = ""
    if listener is not None:
        records = host_port(job.arbitrator[0], listener.getsockname()[1])
        listener.close()
    print(_sentence(config, job, file, folder), file=sys.stderr, flush=True)
    return {"environment": environment, "config": dump_config(config), "records": records}, here


def begin_mirror(job: StartedJob, begun: Mapping[str, Any]) -> Environments:
    """Make a folder for the records of this machine, and start what sends them to rank 0's.

    Returns what the workers here need beside. Raises EnvironmentNotReady: the folder cannot be made.
    """
    folder = RunFolder(new_scratch_path(begun["environment"][variables.RUN_ID]))
    places = {variables.CONFIG: str(folder.config_file), variables.RUN_DIR: str(folder.path)}
    os.environ.update(places)
    try:
        folder.make()
        folder.config_file.write_text(begun["config"], encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReady(f"cannot make {folder.path}: {error.strerror or error}") from error
    config = load_config(folder.config_file)
    here = _begin_here("mirror", job, config, folder, folder.path, records=begun["records"])
    return {rank: environment | places for rank, environment in here.items()}


def _begin_here(
    kind: str, job: StartedJob, config: Config, folder: RunFolder, scratch: Path, **duty: Any
) -> Environments:
    """Start the companion of this machine, and its servers. Returns what the workers here need beside.

    Args:
        scratch: folder of what is to be released in the end.
        duty: what else the companion is told.
    """
    release_stale()  # what companions have left that were killed
    prefix = new_shm_prefix(variables.get(variables.RUN_ID) or "")
    holdings = Holdings(run_id="", shm_prefix=prefix, scratch=str(scratch))
    try:
        record = holdings.save()
        here = roles_here(job, config, folder, holdings)
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {scratch}: {error.strerror or error}") from error
    mark = str(folder.iteration_file(job.place.rank).absolute())
    patience_s = config.timeouts.lease_s / 3  # workers miss an arbitrator after a lease
    whole = Duty(job.pids_here, job.place.rank, str(scratch), mark, patience_s, roles=here.started, **duty)
    _start_companion(kind, whole, config.timeouts.stall_fail_s, record)
    return here.environments


def _checkpoint(job: StartedJob, run_dir: Path) -> Path | None:
    """Where training goes on. Raises EnvironmentNotReady where the user names a file that is not there."""
    if job.place.starts_again:
        found = checkpoint_of_earlier_attempt(run_dir, job.processes[0].agent)
        if found is not None:
            return found
        if job.place.attempt:
            print(
                f"note: {job.place.launcher} has started the job again, and the attempt before has left no checkpoint "
                f"in {run_dir.absolute()}: training begins anew; run.save() and checkpoint_every leave some",
                file=sys.stderr,
                flush=True,
            )
    return _named_checkpoint()


def _named_checkpoint() -> Path | None:
    named = variables.get(variables.RESUME)
    if named is not None and not Path(named).is_file():
        raise EnvironmentNotReady(
            f"{variables.RESUME}: no checkpoint file {named}; a run keeps its own in checkpoints/"
        )
    return Path(named).resolve() if named else None


def _start_companion(kind: str, duty: Duty, patience_s: float, record: int) -> None:
    """Start the companion, which outlives this process, and wait for its end when this one ends in order.

    `record`: a descriptor that it alone keeps open.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_WORKER}
    companion = subprocess.Popen(
        own_process.command("dynamix_ps.other_launchers.companion", kind),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        start_new_session=True,  # signals to the workers are not for it
        pass_fds=[record] if duty.listener is None else [record, duty.listener],
    )
    os.close(record)
    assert companion.stdin is not None
    assert companion.stdout is not None
    pipe, told, pid = companion.stdin, companion.stdout, os.getpid()

    def tell(line: bytes) -> None:
        with suppress(BrokenPipeError):  # it has ended; its error is on standard error
            pipe.write(line + b"\n")
            pipe.flush()

    def finish() -> None:
        if os.getpid() == pid:
            tell(DONE)
            with suppress(subprocess.TimeoutExpired):
                companion.wait(patience_s)

    def hear() -> None:
        if lost := told.readline():
            end_beside_training(PeerLostError(lost.decode().strip()))

    tell(duty.to_json())
    if duty.roles:
        threading.Thread(target=hear, name="dynamix-servers", daemon=True).start()
    atexit.register(finish)  # runs after the data plane is left, which is registered later


def _listener(host: str) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(address[0]), 0), family=family)


def _sentence(config: Config, job: StartedJob, file: str | None, folder: RunFolder) -> str:
    """What was chosen, in one line."""
    sizes = config.initial_sizes()
    first = f"{sizes[0]} each" if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    whose = f"by {file}" if file else "by the loader; attach(policy=..., batch=(least, most)) or DYNAMIX_CONFIG choose"
    return (
        f"dynamix: {len(sizes)} workers of {job.place.launcher}; first sizes {first}, from {config.bounds(0)[0]} to "
        f"{config.bounds(0)[1]}, policy {config.policy.name} ({whose}); records in {folder.path}"
    )
