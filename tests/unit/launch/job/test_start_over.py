"""On which hosts a job that was lost as a whole begins again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.start_over import start_over, without_hosts


def job(servers: object = "auto", least: int = 2) -> Config:
    cluster = {
        "hosts": {name: {"slots": 2} for name in "abc"},
        "workers": [{"batch": 40 + rank} for rank in range(6)],
        "servers": servers,
    }
    elastic = {"min_workers": least, "restarts": 1}
    return resolved(
        Config.model_validate({"cluster": cluster, "elastic": elastic, "command": ["python", "train.py"]}, strict=False)
    )


def test_the_workers_and_servers_of_lost_hosts_are_left_out() -> None:
    left = without_hosts(job(), {"b"}).cluster
    assert [(one.batch, one.host) for one in left.workers] == [(40, "a"), (41, "a"), (44, "c"), (45, "c")]
    assert left.servers is not None and [one.host for one in left.servers] == ["a", "c"]
    assert list(left.hosts) == ["a", "c"] and left.host == "a"


def test_a_signal_to_the_launcher_ends_the_wait_for_the_next_start() -> None:
    interrupts, said = Interrupts(), list[str]()
    interrupts.notice("SIGTERM", "a")
    assert start_over(job(), (), Path("last.pt"), 0, interrupts, said.append) is None
    assert said == [
        "the job starts again in 1 s with 6 workers, from last.pt: 1 of 1 (elastic.restarts)",
        "SIGTERM on host a: the job is not started again",
    ]


def test_a_job_that_has_used_up_its_starts_is_not_started_again() -> None:
    said = list[str]()
    assert start_over(job(), (), Path("last.pt"), 1, Interrupts(), said.append) is None
    assert said == []


def test_without_a_lost_host_all_begin_again() -> None:
    config = job()
    assert without_hosts(config, ()) is config


@pytest.mark.parametrize(
    ("config", "lost", "why"),
    [
        (job(), "a", "host a is gone, which had the scheduler"),
        (job(least=5), "b", "4 workers are on the hosts that are left, elastic.min_workers is 5"),
        (job(servers=[{"host": "c"}]), "c", "no server is on the hosts that are left"),
    ],
)
def test_what_cannot_begin_again_says_why(config: Config, lost: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        without_hosts(config, {lost})
