"""The decision on a closed window, without calls of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynamix_ps.arbitrator.decision import Decisions
from dynamix_ps.arbitrator.journal import Resumed
from dynamix_ps.arbitrator.links import LinkReports
from dynamix_ps.arbitrator.places import WorkerPlaces
from dynamix_ps.arbitrator.publication import PlanPublication
from dynamix_ps.arbitrator.windows import ClosedWindow
from dynamix_ps.messages import Plan
from dynamix_ps.run_record.json_lines import Journal
from tests.control_plane import config, run_under
from tests.unit.arbitrator.service_bench import Scripted

FIRST = Plan(0, (64, 64, 64))


class Deciding:
    """The decision and its neighbours."""

    def __init__(self, folder: Path, policy: Scripted, mode: str = "adapt", resumed: Resumed | None = None) -> None:
        cluster, resumed = config(mode=mode), resumed or Resumed()
        self.file = folder / "journal.jsonl"
        journal = Journal(self.file)
        self.places = WorkerPlaces(cluster, FIRST)
        self.publication = PlanPublication(FIRST, 0, journal)
        self.decisions = Decisions(cluster, policy, journal, resumed, self.places, self.publication, LinkReports(3, 1))

    async def decide(self, window: int) -> dict[str, Any]:
        """The line that the journal has of it."""
        records = tuple(run_under(self.publication.plan, window))
        await self.decisions.decide(ClosedWindow(window, records, timed_out=False), now_s=0.0)
        line: dict[str, Any] = json.loads(self.file.read_text().splitlines()[-1])
        return line


async def test_a_new_plan_is_journaled_and_published(tmp_path: Path) -> None:
    deciding = Deciding(tmp_path, Scripted((32, 64, 96)))
    line = await deciding.decide(0)
    assert (line["kind"], line["version"], line["batch_sizes"]) == ("plan", 1, [32, 64, 96])
    assert deciding.publication.plan == Plan(1, (32, 64, 96))
    assert deciding.decisions.count == 1


async def test_what_is_only_observed_is_not_published(tmp_path: Path) -> None:
    deciding = Deciding(tmp_path, Scripted((32, 64, 96)), mode="observe")
    assert (await deciding.decide(0))["kind"] == "observed"
    assert deciding.publication.plan == FIRST


async def test_after_a_restart_the_first_complete_window_keeps_the_plan(tmp_path: Path) -> None:
    policy = Scripted((32, 64, 96))
    deciding = Deciding(tmp_path, policy, resumed=Resumed(decisions=7, starts=1))
    assert (await deciding.decide(0))["kind"] == "kept"
    assert not policy.views and deciding.decisions.count == 8
    assert (await deciding.decide(1))["kind"] == "plan"


async def test_empty_places_have_no_record_and_no_samples(tmp_path: Path) -> None:
    policy = Scripted((64, 64, 64))
    deciding = Deciding(tmp_path, policy)
    deciding.places.lose(1)
    line = await deciding.decide(0)
    (view,) = policy.views
    assert view.records[1] is None and view.bounds[1] == (0, 0)
    assert (line["reported"], line["batch_sizes"]) == ([0, 2], [64, 0, 64])
