"""An arbitrator without a network, with a test clock and a policy with prepared answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.run_record.json_lines import Journal
from tests.control_plane import config, registration, run_under


class Scripted:
    """Answers with prepared sizes or decisions, or raises them; remembers what it was asked."""

    name = "scripted"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.views: list[View] = []

    def decide(self, view: View) -> Decision:
        self.views.append(view)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Decision) else Decision(answer)


class Bench:
    """An arbitrator without a network, on a clock of our own."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        cluster: Config | None = None,
        exporter: Any = None,
    ) -> None:
        self.file = folder / "journal.jsonl"
        self.now_s = 100.0
        self.arbitrator = Arbitrator(
            cluster or config(),
            policy,
            Journal(self.file),
            replay(self.file),
            folder / "policy.npz",
            lambda: self.now_s,
            exporter,
        )

    def register_all(self, plan: Plan | None = None) -> None:
        for rank in range(3):
            self.arbitrator.register(registration(rank, plan=plan))

    def report(self, records: list[WindowRecord | None]) -> None:
        for item in records:
            if item is not None:
                self.arbitrator.report(f"life-{item.rank}", item)

    async def window(self, number: int, plan: Plan, **changes: Any) -> None:
        self.report(run_under(plan, number, **changes))
        await self.arbitrator.step()

    async def learned(self) -> None:
        """Wait for the update that is under way, if any."""
        await asyncio.wait_for(self.arbitrator.settled(), 30)

    @property
    def plan(self) -> Plan:
        return self.arbitrator.plan

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["kind"] in kinds]
