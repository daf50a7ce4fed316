"""What takes the place of a cluster: the session of a process that computes for all workers.

This is the seam between a real and a rehearsed cluster. The hook is the same in both: sampler, gradients, trailer,
vote, learning rate and records. It gets from its session which workers it computes for, a watch, a reporter and plans.
Here the watch shows simulated seconds, and the reporter asks the arbitrator in this process.

    attach() -> Settings (DYNAMIX_REHEARSAL) -> Session.join -> RehearsedSession
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import Plan
from dynamix_ps.rehearsal.local_arbitrator import LocalArbitrator
from dynamix_ps.rehearsal.records import Records
from dynamix_ps.rehearsal.simulated_cluster import SimulatedCluster, SimulatedWatch
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.scenario.load import load_scenario
from worker_hooks.observe.reporter import Reporting
from worker_hooks.observe.stopwatch import NewestSum, Watch
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.workers import Workers

_CLOCK = 1  # its random numbers are not those of the policy


class RehearsedSession(Session):
    """The session of a rehearsal."""

    def __init__(self, settings: Settings, framework: str) -> None:
        """Raises ConfigError for an unusable cluster or scenario file, EnvironmentNotReady if one is not named.

        And EnvironmentNotReady for a race of rates with a script that is not in torch.
        """
        assert settings.rehearsal is not None
        if variables.get(variables.RATE_TRIAL) and framework != "torch":
            raise EnvironmentNotReady(
                f"--find-rate changes the steps of optimizers in torch, and this script trains with {framework}; "
                "compare its rates by hand"
            )
        path = variables.get(variables.CONFIG)
        if path is None or settings.run_dir is None:
            raise EnvironmentNotReady(
                f"{variables.REHEARSAL} is set, but not {variables.CONFIG} and {variables.RUN_DIR}; start the script "
                "with `dynamix rehearse`, which sets all of them"
            )
        self._config = load_config(Path(path))
        n_workers = len(self._config.cluster.workers)
        scenario = load_scenario(settings.rehearsal)
        if scenario.n_workers != n_workers:
            raise EnvironmentNotReady(
                f"{settings.rehearsal}: got {scenario.n_workers} workers, the cluster file has {n_workers}; start the "
                "script with `dynamix rehearse`, which makes them fit"
            )
        rng = np.random.default_rng([self._config.seed, _CLOCK])
        self._cluster = SimulatedCluster(scenario, self._config.window, rng, self._config.bucket_bytes)
        super().__init__(settings, framework)
        self.workers = Workers(n_workers, range(n_workers))
        self._servers = scenario.servers.count + n_workers * scenario.servers.beside_workers

    def _open_records(self) -> Reporting:
        assert self.settings.run_dir is not None
        self._records = Records(RunFolder(self.settings.run_dir), self._cluster, time.time())
        if factor := variables.get(variables.RATE_TRIAL):
            from dynamix_ps.rehearsal.rate_trial import RateTrial

            end = partial(os._exit, 0)  # whatever the script would do at its end
            RateTrial(float(factor), lambda: self._records.iterations, self._records.event, end).install()
        return self._records

    def now_s(self) -> float:
        return self._cluster.time_s

    def make_watch(self, newest: Callable[[], NewestSum]) -> Watch:
        return SimulatedWatch(self._cluster, newest)

    def _started(self, batch_sizes: Sequence[int], **fields: Any) -> None:
        self._records.started(batch_sizes, **{**fields, "comm": self._config.comm, "comm_version": "rehearsed"})

    def _connect(self, plan: Plan, work: str) -> None:
        assert self.folder is not None
        arbitrator = LocalArbitrator(self._config, self.folder, self._servers, self._records.unix_s)
        self._records.connect(arbitrator, plan)
