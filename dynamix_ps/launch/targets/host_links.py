"""The links to the agents of all hosts of a job, and the loop in which the launcher serves them."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable

from dynamix_ps.launch.targets.agent_link import AgentLink, Deliver, Target


class HostLinks(dict[str, AgentLink]):
    """The links by name of the host.

    Args:
        target: how hosts are reached.
        deliver: called with (host, message) for every message of an agent, within `pump`.
    """

    def __init__(self, target: Target, deliver: Deliver) -> None:
        super().__init__()
        self.target, self._deliver = target, deliver
        self._selector = selectors.DefaultSelector()

    def connect(self, names: Iterable[str]) -> None:
        """Begin to reach the agents of these hosts; does not wait. Raises EnvironmentNotReady."""
        for name in names:
            self[name] = self.target.connect(name, self._selector, self._deliver)

    def reach_again(self, name: str) -> None:
        """Begin to reach a host that has lost its agent, or had none. Raises EnvironmentNotReady."""
        if name in self:
            self[name].close()
        self.connect([name])

    @property
    def lost(self) -> dict[str, str]:
        """Hosts whose link has ended, with the reason."""
        return {name: link.lost for name, link in self.items() if link.lost}

    def pump(self, duration_s: float) -> None:
        """Receive messages for `duration_s`."""
        deadline_s = time.monotonic() + duration_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not self._selector.get_map():
                time.sleep(left_s)
                break
            for key, _ in self._selector.select(left_s):
                if self._selector.get_map().get(key.fd) is key:  # not if one before it has closed it
                    key.data()
        for link in self.values():
            link.tick()

    def close(self) -> None:
        """Leave all agents, and wait a while for their ends."""
        for link in self.values():
            link.leave()
        for link in self.values():
            link.close()
        self._selector.close()
