"""What a cluster file leaves open, written out."""

from __future__ import annotations

from typing import Any

from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.resolve import resolved, with_places
from dynamix_ps.config.schema import Config

WORKERS = ({"batch": 96}, {"batch": 64, "min": 16, "speed": 0.5})
HOSTS = {name: {"address": f"10.0.0.{number}"} for number, name in enumerate("abcd", 1)}


def config(**elastic: Any) -> Config:
    return Config.model_validate({"cluster": {"workers": WORKERS}, "elastic": {"min_workers": 1, **elastic}})


def test_workers_that_may_come_later_are_as_the_last_one() -> None:
    assert resolved(config()) == config()
    found = resolved(config(max_workers=4))
    assert found.first_workers == 2 and found.later == {2, 3}
    *first, third, fourth = found.cluster.workers
    assert first == list(config().cluster.workers)
    assert third == fourth == first[1].model_copy(update={"later": True})
    assert found.initial_sizes() == (96, 64, 0, 0), "they have nothing before they come"
    assert (found.bounds(3), found.accepted_bounds(3)) == ((16, 1024), (0, 1024))
    assert found.accepted_bounds(1) == (0, found.bounds(1)[1]), "any worker may be gone"
    assert Config.model_validate({"cluster": {"workers": WORKERS}}).accepted_bounds(1) == found.bounds(1)
    assert with_places(found) == found


def test_each_is_on_the_first_host_that_has_room(tmp_path: Any) -> None:
    cluster = {"hosts": HOSTS, "workers": ({"host": "b"}, {"host": "d"}, {"later": True, "host": "c", "batch": 32})}
    found = resolved(Config.model_validate({"cluster": cluster, "elastic": {"min_workers": 1, "max_workers": 4}}))
    assert [worker.host for worker in found.cluster.workers] == ["b", "d", "c", "a"]
    assert [worker.batch for worker in found.cluster.workers] == [64, 64, 32, 32]
    file = tmp_path / "written.yaml"
    file.write_text(dump_config(found))
    assert load_config(file) == found, "and all roles can read it"
