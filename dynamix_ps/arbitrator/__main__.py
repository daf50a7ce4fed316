"""`python -m dynamix_ps.arbitrator`: one run's arbitrator; its environment tells what to serve (config/variables.py).

Exit codes: 0 after SIGTERM or SIGINT, 2 configuration, 3 variables missing or address taken, 1 policy file.
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

from dynamix_ps.arbitrator.journal import Journal, replay
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DynamixError, EnvironmentNotReady
from dynamix_ps.policy.registry import findings, make_policy, policy_rng
from dynamix_ps.rpc.server import Server
from dynamix_ps.run_record.run_folder import RunFolder

if TYPE_CHECKING:
    from dynamix_ps.report.prometheus import Exporter

STOP_S = 1.0  # how long calls under way may take to finish

logger = logging.getLogger("dynamix.arbitrator")


@dataclass(frozen=True, slots=True)
class Settings:
    config: Config
    folder: RunFolder
    run_id: str
    token: str
    address: str  # host:port


def main() -> int:
    """Serve until told to stop; returns the exit code."""
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


def read_settings() -> Settings:
    """Settings from the environment.

    Raises:
        EnvironmentNotReady: a variable is missing.
        ConfigError: the configuration is wrong.
    """
    names = (variables.CONFIG, variables.RUN_DIR, variables.RUN_ID, variables.TOKEN, variables.ARBITRATOR)
    values = {name: variables.get(name) for name in names}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise EnvironmentNotReady(
            f"arbitrator: {', '.join(missing)} not set; it is started by `dynamix launch`, which sets them"
        )
    config_file, run_dir, run_id, token, address = (str(values[name]) for name in names)
    return Settings(load_config(Path(config_file), findings), RunFolder(Path(run_dir)), run_id, token, address)


async def serve(settings: Settings) -> None:
    """Bring up the service from its journal, serve, and stop in order on SIGTERM."""
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
    arbitrator = Arbitrator(config, policy, journal, resumed, policy_file, exporter=exporter)
    server = Server(arbitrator, settings.run_id, settings.token, n_workers)
    gc.freeze()  # what was loaded stays: looking through it takes 20 ms, which could fall into a decision
    port = await server.start(settings.address)
    logger.info(
        "listening on port %d for %d workers, policy %s, restarts %d", port, n_workers, policy.name, resumed.starts
    )
    deciding = asyncio.create_task(arbitrator.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((deciding, stopping), return_when=asyncio.FIRST_COMPLETED)
    await server.stop(STOP_S)
    arbitrator.close()
    if exporter is not None:
        exporter.close()
    if deciding.done():
        deciding.result()  # it only ends by an error of ours: let it be seen, and let us be restarted
    deciding.cancel()
    await asyncio.wait((deciding,))
    journal.close()
    logger.info("stopped")


def _exporter(config: Config, run_name: str, journal: Journal) -> Exporter | None:
    """The Prometheus endpoint, if it is wanted and can be had; what fails is journaled, and all else goes on."""
    try:
        from dynamix_ps.report.prometheus import Exporter  # may lack its package

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
