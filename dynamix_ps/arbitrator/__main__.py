"""`python -m dynamix_ps.arbitrator`: the arbitrator of one run. Its settings come from the environment.

The variables are listed in config/variables.py. Exit codes: 0 after SIGTERM or SIGINT, 1 for an unusable policy file,
2 for a wrong configuration, 3 for missing variables or an address in use.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.arbitrator.coordination import Coordination
from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.certificates import Certificates
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.generations import MembershipSettings
from dynamix_ps.membership.journal_file import JournalFile
from dynamix_ps.policy.registry import findings_at_start, make_policy, policy_rng
from dynamix_ps.rpc.encryption import arbitrators_certificates
from dynamix_ps.rpc.server import RpcServer
from dynamix_ps.run_record.json_lines import Journal
from dynamix_ps.run_record.run_folder import RunFolder

if TYPE_CHECKING:
    from dynamix_ps.report.prometheus import Exporter

STOP_S = 1.0  # limit for unfinished calls at the end
GARBAGE = 10_000  # new objects from which on a collection is worth its time (chosen by us)

logger = logging.getLogger("dynamix.arbitrator")


@dataclass(frozen=True, slots=True)
class ArbitratorSettings:
    config: Config
    folder: RunFolder
    run_id: str
    token: str
    address: str  # host:port
    certificates: Certificates | None  # None: calls are not encrypted
    n_servers: int | None  # None: the cluster file says it


def main() -> int:
    """Serve until a signal arrives; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        asyncio.run(serve(read_settings()))
    except DynamixError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: arbitrator: {error}; the run folder must exist and be writable", file=sys.stderr)
        return EnvironmentNotReady.exit_code
    return 0


def read_settings() -> ArbitratorSettings:
    """Settings from the environment.

    Raises:
        EnvironmentNotReady: a variable is missing or wrong, or the certificates are.
        ConfigError: the configuration is wrong.
    """
    names = (variables.CONFIG, variables.RUN_DIR, variables.RUN_ID, variables.TOKEN, variables.ARBITRATOR)
    values = {name: variables.get(name) for name in names}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise EnvironmentNotReady(
            f"arbitrator: {', '.join(missing)} not set; start the arbitrator with `dynamix launch`, which sets them"
        )
    config_file, run_dir, run_id, token, address = (str(values[name]) for name in names)
    config = load_config(Path(config_file), findings_at_start)
    certificates = arbitrators_certificates(address, config)
    return ArbitratorSettings(
        config, RunFolder(Path(run_dir)), run_id, token, address, certificates, _servers_started(config)
    )


def _servers_started(config: Config) -> int | None:
    """How many servers the launcher has started; None: those of the cluster file.

    With `servers: auto` there is one on every host, and the cluster file does not know the hosts.
    Raises EnvironmentNotReady if nothing tells the number.
    """
    if not config.data_plane.has_servers:
        return None
    told = variables.get("DMLC_NUM_SERVER")
    if told is None and config.cluster.servers is not None:
        return None
    if told is None or not told.isdecimal() or int(told) < 1:
        raise EnvironmentNotReady(
            f"arbitrator: DMLC_NUM_SERVER is {'not set' if told is None else repr(told)}, expected the number of "
            "servers, which `cluster.servers: auto` does not tell; set it as for the other roles"
        )
    return int(told)


async def serve(settings: ArbitratorSettings) -> None:
    """Restore the state from the journal, serve, and stop in order on SIGTERM or SIGINT."""
    config, folder = settings.config, settings.folder
    n_workers = len(config.cluster.workers)
    policy_file = folder.arbitrator_dir / "policy.npz"
    resumed = replay(folder.journal_file)
    rng = policy_rng(config, resumed.starts)
    policy = make_policy(config, n_workers, rng, resume=policy_file if policy_file.exists() else None)

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    journal = Journal(folder.journal_file)
    exporter = _exporter(config, folder.path.name, journal)
    arbitrator = Arbitrator(
        config, policy, journal, resumed, policy_file, exporter=exporter, n_servers=settings.n_servers
    )
    coordination = _coordination(settings, arbitrator, journal, exporter)
    server = RpcServer(arbitrator, settings.run_id, settings.token, n_workers, settings.certificates, coordination)
    gc.freeze()  # a collection over the loaded modules takes 20 ms
    gc.disable()  # the arbitrator collects between decisions
    port = await server.start(settings.address)
    logger.info(
        "listening on port %d for %d workers, policy %s, restarts %d", port, n_workers, policy.name, resumed.starts
    )
    serving = [asyncio.create_task(arbitrator.run(_collect_garbage))]
    if coordination is not None:
        serving.append(asyncio.create_task(coordination.run()))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((*serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    await server.stop(STOP_S)
    arbitrator.close()
    if exporter is not None:
        exporter.close()
    for task in serving:
        if task.done():
            task.result()  # it ends only by a fault: raise it, so that the supervisor restarts the arbitrator
        task.cancel()
    await asyncio.wait(serving)
    journal.close()
    logger.info("stopped")


def _collect_garbage() -> None:
    """Of what is new; every tenth time of everything, which takes a tenth of a second with 1,024 workers."""
    new, _, collections = gc.get_count()
    if new >= GARBAGE:
        gc.collect(2 if collections >= 10 else 1)


def _coordination(
    settings: ArbitratorSettings, arbitrator: Arbitrator, journal: Journal, exporter: Exporter | None
) -> Coordination | None:
    """The coordinator of membership, with what earlier arbitrators of this run have recorded; none: not elastic."""
    config = settings.config
    if config.elastic.min_workers is None:
        return None
    n_workers = len(config.cluster.workers)
    limits = MembershipSettings(
        workers=config.first_workers,
        servers=_number_of_servers(settings),
        min_workers=config.elastic.min_workers,
        max_workers=n_workers,
        lease_s=config.timeouts.lease_s,
        join_wait_s=config.elastic.join_wait_s,
    )
    file = JournalFile(settings.folder.membership_file)
    coordinator = Coordinator(limits, file.records)
    lose, depart = arbitrator.lose, arbitrator.depart
    if config.is_decentralised:
        lose = depart = _plan_nothing
    return Coordination(coordinator, file, journal, lose, depart, exporter)


def _plan_nothing(rank: int) -> None:
    """The workers choose their sizes themselves."""


def _number_of_servers(settings: ArbitratorSettings) -> int:
    """0 for a ring."""
    config = settings.config
    if not config.data_plane.has_servers:
        return 0
    number = settings.n_servers or len(config.cluster.servers or ())
    assert number, "DMLC_NUM_SERVER tells where the cluster file does not"
    return number


def _exporter(config: Config, run_name: str, journal: Journal) -> Exporter | None:
    """The Prometheus endpoint, or None if it is not wanted or fails. A failure is journaled and stops nothing else."""
    try:
        from dynamix_ps.report.prometheus import Exporter  # its package may be missing

        exporter = Exporter(config, run_name)
        address = exporter.start()
    except Exception as error:
        logger.warning("prometheus: %s", error)
        journal.write("degraded", what="prometheus", detail=str(error))
        return None
    if address is None:
        return None
    logger.info("metrics at %s", address)
    return exporter


if __name__ == "__main__":
    sys.exit(main())
