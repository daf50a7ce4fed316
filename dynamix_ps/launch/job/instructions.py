"""What the launcher tells each host of a run before the roles there start."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.role_hosts import address_of
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.messages.agent_messages import Begin, Prepare, Prepared, SetSpeeds
from dynamix_ps.launch.roles.authority import Authority
from dynamix_ps.launch.roles.plan import hosts_with_roles
from dynamix_ps.run_record.run_folder import RunFolder


class Instructions:
    """Those of one run. Arguments: see `RunHosts`.

    Attributes:
        config: with all hosts written out, also those that have come later.
        begun: what all hosts were told, without what differs between them; unset before `all_ready`.
        run_id: the run's name.
        token: proves to a role that a call comes from this run.
        speeds: as told last.
    """

    begun: Begin

    def __init__(self, config: Config, folder: RunFolder, authority: Authority | None) -> None:
        self.config, self._folder, self._authority = config, folder, authority
        self.run_id = self.token = ""
        self.speeds: SetSpeeds | None = None

    def prepare(self, host: str, shared: bool, resume: Path | None) -> Prepare:
        """`shared`: the host has the launcher's run folder."""
        came = arriving(resume) if resume is not None and not shared else ""
        peers = (other for other in hosts_with_roles(self.config) if other != host)
        return Prepare(
            run_id=self.run_id,
            host=host,
            peers=tuple(address_of(self.config.cluster, other) for other in peers),
            cwd=os.getcwd(),
            run_dir=str(self._folder.path) if shared else "",
            config="" if shared else dump_config(self.config),
            resume=str(resume) if resume is not None and shared else came,
            token=self.token,
        )

    def all_ready(self, told: Mapping[str, Prepared], home: Prepared) -> None:
        """Take the addresses that all hosts have told, and the ports of the host of the scheduler."""
        addresses = {name: ready.address for name, ready in told.items()}
        self.begun = Begin(addresses, home.port, home.arbitrator_port)

    def begin(self, host: str, address: str, late: bool = False) -> Begin:
        """With a new certificate for `address`. `late`: the host has come back to a job that goes on."""
        self.begun = dataclasses.replace(self.begun, addresses={**self.begun.addresses, host: address})
        certificates = {} if self._authority is None else dataclasses.asdict(self._authority.issue(address))
        return dataclasses.replace(self.begun, certificates=certificates, late=late)


def arriving(checkpoint: Path) -> str:
    """Where a checkpoint of the launcher lies in the run folder of another host."""
    return f"checkpoints/{checkpoint.name}"
