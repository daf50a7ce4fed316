"""What the launcher knows of a host, from the messages of its agent."""

from __future__ import annotations

from dataclasses import dataclass

from dynamix_ps.launch.messages.agent_messages import Prepared
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver
from dynamix_ps.launch.preflight.late_host import LateHost


@dataclass(slots=True)
class HostState:
    """One agent on a host.

    `finished`: nothing of the run is left on the host. `check`: whether the host, which the cluster file does not name,
    fits to the job; None: it does.
    """

    files: FolderReceiver
    ready: Prepared | None = None
    finished: bool = False
    check: LateHost | None = None
