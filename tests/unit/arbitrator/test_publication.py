"""The newest plan and its streams, without the rest of the arbitrator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dynamix_ps.arbitrator.publication import MAX_STREAMS_PER_WORKER, PlanPublication
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.refusals import TooManyStreamsError
from dynamix_ps.run_record.json_lines import Journal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def publication(file: Path) -> PlanPublication:
    return PlanPublication(Plan(2, (8, 8)), newest_version=4, journal=Journal(file))


async def test_a_stream_carries_the_newest_plan_and_then_every_newer_one(publication: PlanPublication) -> None:
    stream = publication.stream(0, newest_version=1)
    assert await anext(stream) == Plan(2, (8, 8))
    coming = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    publication.publish(Plan(5, (4, 12)))
    assert await coming == Plan(5, (4, 12))
    publication.publish(Plan(6, (5, 11)))
    publication.publish(Plan(7, (6, 10)))
    assert await anext(stream) == Plan(7, (6, 10)), "a slow reader skips plans"


async def test_a_closed_stream_makes_room_for_another(publication: PlanPublication) -> None:
    streams = [publication.stream(0, 0) for _ in range(MAX_STREAMS_PER_WORKER)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(TooManyStreamsError, match="worker 0 has"):
        await anext(publication.stream(0, 0))
    await anext(publication.stream(1, 0))
    await streams[0].aclose()
    assert await anext(publication.stream(0, 0)) == publication.plan


def test_new_sizes_get_a_version_above_all_that_are_known(publication: PlanPublication, file: Path) -> None:
    publication.resize((8, 8))
    assert publication.plan.version == 2, "the sizes are those of the newest plan"
    publication.resize((0, 0))
    assert publication.plan.version == 2, "nobody is there"
    publication.resize((16, 0))
    assert publication.plan == Plan(5, (16, 0))
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["kind"], line["version"], line["batch_sizes"]) == ("adopted", 5, [16, 0])


def test_plans_of_workers_are_adopted_one_version_ahead_or_when_two_hold_them(publication: PlanPublication) -> None:
    publication.hold(0, Plan(6, (6, 10)))
    assert publication.plan == Plan(2, (8, 8)), "two versions ahead of what is known"
    publication.hold(0, Plan(5, (6, 10)))
    assert publication.plan == Plan(5, (6, 10))
    far = Plan(90, (2, 14))
    publication.hold(0, far)
    assert publication.plan.version == 5
    assert publication.newest_version_of(0) == 90
    publication.hold(1, far)
    assert publication.plan == far


def test_before_the_first_decision_the_sizes_of_workers_replace_those_of_the_cluster_file(file: Path) -> None:
    publication = PlanPublication(Plan(0, (8, 8)), 0, Journal(file))
    publication.hold(1, Plan(0, (4, 12)))
    assert publication.plan == Plan(0, (4, 12))
