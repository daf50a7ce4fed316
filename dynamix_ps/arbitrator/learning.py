"""Updates of a policy that learns, beside the decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from dynamix_ps.policy.base import Learner, Policy
from dynamix_ps.run_record.json_lines import Journal


class PolicyUpdates:
    """One update at a time, saved to disk when it is complete."""

    def __init__(
        self, policy: Policy, policy_file: Path, journal: Journal, degraded: Callable[[str, str], None]
    ) -> None:
        """`degraded`: is told which part failed, and how."""
        self._policy, self._file, self._journal, self._degraded = policy, policy_file, journal, degraded
        self._update: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start an update if the policy learns, an update is due and none is under way."""
        busy = self._update is not None and not self._update.done()
        if not busy and isinstance(self._policy, Learner) and self._policy.update_due:
            self._update = asyncio.create_task(self._learn(self._policy))

    async def settled(self) -> None:
        """Wait until an update that is under way is complete."""
        if self._update is not None:
            await self._update

    async def cancel(self) -> None:
        """End an update that is under way."""
        if self._update is not None and self._update.cancel():
            await asyncio.wait((self._update,))

    async def _learn(self, policy: Learner) -> None:
        """`begin_update` and `finish_update` run between decisions, the rest in a thread."""
        try:
            diagnostics = policy.finish_update(await asyncio.to_thread(policy.begin_update()))
            await asyncio.to_thread(policy.save, self._file)
        except OSError as error:
            self._degraded("policy file", f"{self._file} not written: {error}; a restart will not know it")
        except Exception as error:  # any fault of a policy: the weights stay and training goes on
            self._degraded("policy", f"{self._policy.name}: update failed, the weights stay: {error!r}")
        else:
            if not diagnostics["accepted"]:
                self._degraded("policy", f"{self._policy.name}: update was not finite, the weights before it stay")
            self._journal.write("update", **diagnostics)
