"""The interface by which the launcher reaches the agent of a host, and its form for an agent in the same process."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping
from typing import Protocol

from dynamix_ps.errors import UsageError
from dynamix_ps.launch.host.host_agent import HostAgent
from dynamix_ps.launch.messages.agent_messages import FromAgent, ToAgent
from dynamix_ps.launch.roles.placement import Placement

ONE_HOST = (
    "the job is on one host alone, and its roles listen for no other; a job that others may join has two hosts in "
    "cluster.hosts, or workers of elastic.max_workers without a slot there"
)
Deliver = Callable[[str, FromAgent], None]  # (name of the host, message)


class AgentLink(Protocol):
    """The agent of one host, as the launcher sees it."""

    @property
    def shares_run_folder(self) -> bool:
        """Whether the agent and its roles write directly into the launcher's run folder."""
        ...

    @property
    def lost(self) -> str:
        """Why the agent is lost; empty while it is connected."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the link takes messages that could wait."""
        ...

    def send(self, message: ToAgent) -> None: ...

    def tick(self) -> None:
        """Call this a few times per second."""
        ...

    def leave(self) -> None:
        """Close the stream: the agent then ends all that it has started. Does not wait."""
        ...

    def close(self) -> None:
        """Leave the agent, and wait a while for its end. Never raises."""
        ...


class Target(Protocol):
    """How the hosts of a job are reached."""

    def connect(self, host: str, selector: selectors.BaseSelector, deliver: Deliver) -> AgentLink:
        """Begin to reach the agent of a host; does not wait. Raises EnvironmentNotReady."""
        ...

    def admit(self, host: str) -> None:
        """From now on reach a host that the cluster file does not name, too. Does not wait.

        Raises UsageError if no host joins a job whose hosts are reached so.
        """
        ...


class OwnProcess:
    """The target for a job on the launcher's host alone: the agent is part of the launcher."""

    def __init__(self, environ: Mapping[str, str], placement: Placement | None = None) -> None:
        self._environ, self._placement = environ, placement

    def connect(self, host: str, selector: selectors.BaseSelector, deliver: Deliver) -> AgentLink:
        return LocalLink(host, selector, deliver, self._environ, self._placement)

    def admit(self, host: str) -> None:
        raise UsageError(ONE_HOST)


class LocalLink:
    """An agent within this process."""

    shares_run_folder = True
    lost = ""
    has_room = True

    def __init__(
        self,
        host: str,
        selector: selectors.BaseSelector,
        deliver: Deliver,
        environ: Mapping[str, str],
        placement: Placement | None,
    ) -> None:
        self._agent = HostAgent(selector, lambda message: deliver(host, message), environ, placement)
        self.send = self._agent.receive
        self.tick = self._agent.tick
        self.leave = self.close = self._agent.close
