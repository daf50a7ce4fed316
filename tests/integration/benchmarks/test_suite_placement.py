"""A scenario on a real test bed: roles run in their places, links follow the schedule, nothing is left behind."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.suite import placement
from benchmarks.suite.placement import Scheduled, placed_for
from benchmarks.suite.scenario import Scenario
from benchmarks.testbed.bed import Bed, permitted
from benchmarks.testbed.commands import BedError, run_json
from dynamix_ps.config.schema import Cluster, WorkerSection
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.emulation.speeds import Emulation
from dynamix_ps.launch.roles.plan import RoleSpec

pytestmark = pytest.mark.timeout(60)

SCENARIO = Scenario.model_validate(
    {
        "name": "two",
        "about": "",
        "cores": (0.5, 0.5),
        "links": {"worker-0": {"up_mbit": 40.0}},
        "schedule": ({"at_s": 5.0, "links": {"worker-1": {"down_mbit": 10.0}, "worker-0": {}}},),
        "repeat_s": 10.0,
    }
)
NO_EMULATION = Emulation("none", "", (0.5, 0.5))


@pytest.mark.skipif(permitted() is not None, reason=f"no test bed: {permitted()}")
def test_roles_are_placed_and_links_follow_the_schedule() -> None:
    with placed_for(SCENARIO, limit_s=60.0) as placed:
        assert placed.network == "namespaces"
        assert placed.ports(Cluster(workers=(WorkerSection(),))) == (
            placement.SCHEDULER_PORT,
            placement.ARBITRATOR_PORT,
        )
        role = placed.place(RoleSpec("worker-1", "worker", (sys.executable, "-c", _ADDRESSES), {"KEPT": "1"}, 1))
        assert role.env["KEPT"] == "1"
        told = subprocess.run(role.argv, capture_output=True, text=True, check=True, timeout=30).stdout
        assert role.env["DMLC_NODE_HOST"] in told.split()
        assert placed.host not in told.split()
        server = placed.place(RoleSpec("server-1", "server", (), {}, beside="worker-1"))
        assert server.env["DMLC_NODE_HOST"] == role.env["DMLC_NODE_HOST"]
        assert server.argv == role.argv[: len(server.argv)]
        assert [one.host for one in placed.servers or ()] == ["worker-0", "worker-1"]

        prefix = role.argv[: role.argv.index(sys.executable)]
        assert _limits(prefix) == 0
        placed.tick(1.0, NO_EMULATION)
        assert _limits(_prefix(placed, "worker-0")) == 1
        placed.tick(6.0, NO_EMULATION)
        assert _limits(_prefix(placed, "worker-0")) == 0
        assert placed._bed.link("worker-1").down_bits_per_s == 10e6  # type: ignore[attr-defined]
        placed.tick(11.0, NO_EMULATION)  # the schedule begins again
        assert _limits(_prefix(placed, "worker-0")) == 1
        assert placed._bed.link("worker-1").down_bits_per_s == math.inf  # type: ignore[attr-defined]
        namespace = Path("/run/netns") / placed._bed.namespace("worker-1")  # type: ignore[attr-defined]
        assert namespace.exists()
    assert not namespace.exists()


@pytest.mark.skipif(permitted() is not None, reason=f"no test bed: {permitted()}")
def test_a_test_bed_that_fails_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(bed: Bed, *_: object) -> None:
        raise BedError("processes of worker-0 do not end")

    monkeypatch.setattr(Bed, "__exit__", refuse)
    with (
        pytest.raises(EnvironmentNotReady, match="processes of worker-0 do not end"),
        placed_for(SCENARIO, 60.0) as placed,
    ):
        bed = placed._bed  # type: ignore[attr-defined]
    monkeypatch.undo()
    bed.down()


def test_without_namespaces_cores_are_emulated_on_loopback_and_links_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "permitted", lambda: "this is user 1000")
    free = SCENARIO.model_copy(update={"links": {}, "schedule": ()})
    with placed_for(free, limit_s=60.0) as placed:
        assert (placed.network, placed.host) == ("loopback", "127.0.0.1")
    with pytest.raises(EnvironmentNotReady, match="limits links, which is not possible here: this is user 1000"):
        placed_for(SCENARIO, limit_s=60.0).__enter__()


_ADDRESSES = "import psutil; print(*(a.address for every in psutil.net_if_addrs().values() for a in every))"


def _prefix(placed: Scheduled, host: str) -> tuple[str, ...]:
    return placed.place(RoleSpec(host, "worker", (), {}, 0)).argv


def _limits(prefix: tuple[str, ...]) -> int:
    """Token buckets on the way out of a host."""
    qdiscs = run_json(*prefix, "tc", "-j", "qdisc", "show", "dev", "eth0")
    return sum(qdisc["kind"] == "tbf" for qdisc in qdiscs)
