"""A cluster that is emulated on one machine while real training runs on it: cores, links, and how they change.

YAML in benchmarks/scenarios/. `cores` are CPU time per second of a worker, which trains with one thread: 0.25 is a
worker of a quarter of the speed of one whole core. The sum over the workers stays the same within a scenario and from
one to the next (1.5 in those that ship), as the H-levels of dynamic batching are defined (arXiv 2305.12213): the
largest over the smallest, total constant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynamix_ps.config.schema import OWN_HOST, Servers, ServerSection
from dynamix_ps.config.validate import load_model
from dynamix_ps.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "scenarios"

Positive = Annotated[float, Field(gt=0)]
Part = Annotated[float, Field(ge=0, le=1)]
Cores = Annotated[float, Field(ge=0.01, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LinkSettings(_Section):
    """One host's link to the switch; what is left out is unlimited. `up` is away from the host."""

    up_mbit: Positive | None = None
    down_mbit: Positive | None = None
    up_loss: Part = 0.0
    down_loss: Part = 0.0


class Change(_Section):
    """From `at_s` of training on: other cores (of all workers), other links (of the hosts named)."""

    at_s: Annotated[float, Field(ge=0)]
    cores: tuple[Cores, ...] | None = None
    links: dict[str, LinkSettings] = {}


class Scenario(_Section):
    """`links` by host: `worker-0`, `scheduler`, and `server-0` where that server has a host of its own.

    `servers` as in a cluster file, where every worker has a host. The schedule begins again after `repeat_s`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*(-[A-Za-z0-9._]+)*$", max_length=64)]
    about: str
    cores: Annotated[tuple[Cores, ...], Field(min_length=1, max_length=64)]
    servers: Servers = None
    links: dict[str, LinkSettings] = {}
    schedule: tuple[Change, ...] = ()
    repeat_s: Positive | None = None

    @property
    def constant(self) -> bool:
        return not self.schedule

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the scheduler, of servers that have one of their own, and of the workers."""
        servers = (f"server-{index}" for index, server in enumerate(self.placed_servers) if server.host == OWN_HOST)
        return ("scheduler", *servers, *self._workers)

    @property
    def placed_servers(self) -> tuple[ServerSection, ...]:
        """Every server with its host: with `auto` one on each worker's."""
        return tuple(ServerSection(host=name) for name in self._workers) if self.servers is None else self.servers

    @property
    def _workers(self) -> tuple[str, ...]:
        return tuple(f"worker-{rank}" for rank in range(len(self.cores)))

    @property
    def needs_namespaces(self) -> bool:
        """Whether links are limited; loopback cannot limit them."""
        return bool(self.links) or any(change.links for change in self.schedule)

    def at(self, trained_s: float) -> Change:
        """Cores of all workers and links with settings after `trained_s` seconds of training."""
        if self.repeat_s is not None:
            trained_s %= self.repeat_s
        cores, links = self.cores, dict(self.links)
        for change in self.schedule:
            if change.at_s <= trained_s:
                cores = cores if change.cores is None else change.cores
                links |= change.links
        return Change(at_s=trained_s, cores=cores, links=links)

    @model_validator(mode="after")
    def _fits_together(self) -> Scenario:
        for change in self.schedule:
            if change.cores is not None and len(change.cores) != len(self.cores):
                raise ValueError(f"schedule: {len(change.cores)} cores at {change.at_s} s, workers: {len(self.cores)}")
            if self.repeat_s is not None and change.at_s >= self.repeat_s:
                raise ValueError(f"schedule: at_s {change.at_s} is never reached, repeat_s is {self.repeat_s}")
        if list(self.schedule) != sorted(self.schedule, key=lambda change: change.at_s):
            raise ValueError("schedule: at_s must grow from one entry to the next")
        beside = {server.host for server in self.placed_servers} - {OWN_HOST}
        if unknown := sorted(beside - set(self._workers)):
            raise ValueError(f"servers: no {', '.join(unknown)}; there are {', '.join(self._workers)}")
        named = {host for change in self.schedule for host in change.links} | set(self.links)
        if unknown := sorted(named - set(self.hosts)):
            raise ValueError(f"links: no host {', '.join(unknown)}; there are {', '.join(self.hosts)}")
        return self


def shipped() -> tuple[str, ...]:
    """Names of the scenarios that ship."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


def load_scenario(name: str) -> Scenario:
    """A scenario that ships, by name. Raises ConfigError."""
    if name not in shipped():
        raise ConfigError(f"no scenario {name!r}; there are {', '.join(shipped())}")
    scenario = load_model(FOLDER / f"{name}.yaml", Scenario)
    if scenario.name != name:
        raise ConfigError(f"{FOLDER / name}.yaml: name: got {scenario.name!r}, expected the file's name")
    return scenario
