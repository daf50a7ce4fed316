"""The arbitrator of a rehearsal, in the training process: the service itself, asked without a network.

A decision is complete before training goes on, learning too, so a rehearsal repeats itself exactly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from dynamix_ps.arbitrator.journal import Resumed
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.policy.registry import make_policy, policy_rng
from dynamix_ps.run_record.json_lines import Journal
from dynamix_ps.run_record.run_folder import RunFolder

_INCARNATION = "rehearsed"


class LocalArbitrator:
    """Decides when all workers have reported a window."""

    def __init__(self, config: Config, folder: RunFolder, servers: int, unix_s: Callable[[], float]) -> None:
        """`unix_s`: the simulated time of day. Raises PolicyError if the policy cannot be made."""
        n_workers = len(config.cluster.workers)
        policy = make_policy(config, n_workers, policy_rng(config))
        self._journal = Journal(folder.journal_file, unix_s)
        policy_file = folder.arbitrator_dir / "policy.npz"
        self._service = Arbitrator(
            config, policy, self._journal, Resumed(), policy_file, clock=unix_s, n_servers=max(servers, 1)
        )
        self._journal.write("started", policy=policy.name, workers=n_workers, restarts=0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dynamix-arbitrator", daemon=True)
        self._thread.start()

    def register(self, plan: Plan, n_workers: int) -> Plan:
        """All workers begin with this plan. The newest plan."""
        newest = plan
        for rank in range(n_workers):
            newest = self._service.register(Registration(rank, _INCARNATION, f"worker-{rank}", 0, plan))
        return newest

    def decide(self, records: Sequence[WindowRecord], reports: Iterable[RoleReport]) -> Plan:
        """All workers report a window, and roles their connections. The plan after the decision."""
        return self._wait(self._decide(records, reports))

    async def _decide(self, records: Sequence[WindowRecord], reports: Iterable[RoleReport]) -> Plan:
        for report in reports:
            self._service.observe(report)
        for record in records:
            self._service.report(_INCARNATION, record)
        await self._service.step()
        await self._service.settled()
        return self._service.plan

    def close(self) -> None:
        """Journal the end."""
        self._service.close()
        self._journal.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Plan]) -> Plan:
        """The script may have an event loop of its own, so this one has a thread of its own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
