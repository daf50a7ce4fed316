"""What the launcher knows of a host, from the messages of its agent."""

from __future__ import annotations

from dataclasses import dataclass

from dynamix_ps.launch.messages.agent_messages import Prepared
from dynamix_ps.launch.messages.folder_mirror import FolderReceiver


@dataclass(slots=True)
class HostState:
    """One agent on a host. `finished`: nothing of the run is left on the host."""

    files: FolderReceiver
    ready: Prepared | None = None
    finished: bool = False
