"""What a machine has for sums over BytePS, as `dynamix launch` plans it: its servers, and variables of its workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple, TypeAlias

from dynamix_ps.certificates import OFF
from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.cleanup.holdings import Holdings, make_socket_folders
from dynamix_ps.launch.roles.plan import RoleSpec, RunPlace, plan_roles
from dynamix_ps.other_launchers.job import StartedJob
from dynamix_ps.run_record.run_folder import RunFolder

_OF_A_ROLE = ("BYTEPS_", "DMLC_", "DYNAMIX_")  # the rest of an environment is the launcher's
Environments: TypeAlias = dict[int, dict[str, str]]  # further variables of the workers of a machine, by rank

_ONE_PROCESS = {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}


class RolesHere(NamedTuple):
    """Attributes:
    started: the scheduler beside rank 0, and the server.
    """

    started: list[RoleSpec]
    environments: Environments


def roles_here(job: StartedJob, config: Config, folder: RunFolder, holdings: Holdings) -> RolesHere:
    """`holdings`: what the run holds on this machine. Raises OSError where its scratch folder is not writable."""
    if not config.data_plane.has_servers:
        return RolesHere([], {rank: {} for rank in job.ranks_here})
    scratch, tls = Path(holdings.scratch), variables.get(variables.TLS)
    make_socket_folders(scratch, job.ranks_here)
    place = RunPlace(
        run_id=variables.get(variables.RUN_ID) or "",
        token=variables.get(variables.TOKEN) or "",
        config_file=folder.config_file,
        run_dir=folder.path,
        scratch=scratch,
        shm_prefix=holdings.shm_prefix,
        port=int(os.environ["DMLC_PS_ROOT_PORT"]),
        arbitrator_port=job.arbitrator[1],
        cores=1,  # how many threads a worker has is the launcher's
        probe=variables.get(variables.PROBE),
        certificates=Path(tls) if tls and tls != OFF else None,
        host=job.host_here,
    )
    specs = plan_roles(config, place, os.environ, sys.executable)
    return RolesHere(
        [spec for spec in specs if spec.rank is None],
        {spec.rank: _further(spec) for spec in specs if spec.rank is not None},
    )


def _further(worker: RoleSpec) -> dict[str, str]:
    """Without the token, which it has: whoever reaches the store can read what is said there."""
    own = {name: value for name, value in worker.env.items() if name.startswith(_OF_A_ROLE)}
    del own[variables.TOKEN]
    return own | _ONE_PROCESS
