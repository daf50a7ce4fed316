from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.slurm_cluster import SlurmCluster, slurm_cluster
from tests.hosts.three_hosts import Launchers, ThreeHosts, three_hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeHosts]:
    """Three hosts that are reached by ssh."""
    with three_hosts(tmp_path_factory.mktemp("ssh")) as up:
        yield up


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Three hosts that are nodes of Slurm."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as up:
        yield up


@pytest.fixture
def started() -> Iterator[Launchers]:
    """Launchers to end with the test, should it fail."""
    launchers: Launchers = []
    yield launchers
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.kill()
            launcher.communicate()
