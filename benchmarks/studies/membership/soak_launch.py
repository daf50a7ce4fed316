"""`dynamix launch` of the soak: each worker and each server on a host of its own, the launcher beside the coordinator.

    python -m benchmarks.studies.membership.soak_launch -c FILE --hosts FILE

Hosts are network namespaces of a bed (benchmarks/testbed). The launcher itself runs on HOME, and so do the scheduler
and the arbitrator.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.studies.membership.soak_place import HOME, NETWORK
from benchmarks.suite.placement import ARBITRATOR_PORT, SCHEDULER_PORT
from benchmarks.testbed.bed import Bed
from benchmarks.testbed.names import NAMESPACES
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Cluster
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.job.run import run_job
from dynamix_ps.launch.roles.placement import ThisMachine, inside
from dynamix_ps.launch.roles.plan import RoleSpec
from dynamix_ps.terminal import make_console


class OnHosts(ThisMachine):
    """Each role on the host of its name, or on HOME.

    Args:
        hosts: address and namespace of each, by name.
    """

    def __init__(self, hosts: Mapping[str, tuple[str, str]]) -> None:
        self._hosts = hosts

    def ports(self, cluster: Cluster) -> tuple[int, int]:
        return SCHEDULER_PORT, ARBITRATOR_PORT

    def place(self, role: RoleSpec) -> RoleSpec:
        """A worker goes to its host by itself (`enter`), so that it can be forked. A ring meets first at worker 0."""
        address, network = self._hosts.get(role.name, self._hosts[HOME])
        if role.role == "worker":
            meeting = "worker-0" if role.env["DMLC_NUM_SERVER"] == "0" else HOME
            own = {"DMLC_NODE_HOST": address, "DMLC_PS_ROOT_URI": self._hosts[meeting][0], NETWORK: network}
            return dataclasses.replace(role, env={**role.env, **own})
        return inside(role, ("nsenter", f"--net={network}", "--"), address)


def hosts_file(folder: Path, bed: Bed, names: tuple[str, ...]) -> Path:
    """Write down where these hosts are."""
    file = folder / "hosts.json"
    file.write_text(json.dumps({name: (bed.address(name), str(NAMESPACES / bed.namespace(name))) for name in names}))
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", type=Path, required=True, dest="config", metavar="FILE", help="the cluster file")
    parser.add_argument("--hosts", type=Path, required=True, metavar="FILE", help="by `hosts_file`")
    args = parser.parse_args()
    placement = OnHosts(json.loads(args.hosts.read_text()))
    return exit_code_of(lambda: run_job(load_config(args.config), sys.argv, None, make_console(), placement))


if __name__ == "__main__":
    sys.exit(main())
