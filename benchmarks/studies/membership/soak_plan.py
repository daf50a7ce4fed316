"""How large a job of the soak is, how much happens to it, and its cluster file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.membership.soak_site import COORDINATOR
from dynamix_ps.config.schema import (
    BatchBounds,
    Cluster,
    Config,
    Elastic,
    Metrics,
    PolicySection,
    ServerSection,
    Timeouts,
    WorkerSection,
)
from dynamix_ps.data_planes import DATA_PLANES


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the job is, and how much happens to it.

    Attributes:
        plane: `comm` of the cluster file.
        fewest: workers that no event goes below.
        fewest_servers: the same of servers.
        during_s: from the first event to the last one, if each can happen when it is due.
        pause_s: of every worker after each step.
        seed: decides when what happens.
    """

    events: int
    during_s: float
    workers: int
    fewest: int
    pause_s: float
    plane: str = "byteps"
    fewest_servers: int = 2
    lease_s: float = 3.0
    seed: int = 0

    @property
    def servers(self) -> int:
        """0 where the workers are a ring."""
        return 3 if DATA_PLANES[self.plane].has_servers else 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of all workers and servers: each is on a host of its own."""
        counts = {"worker": self.workers, "server": self.servers}
        return tuple(f"{role}-{slot}" for role, count in counts.items() for slot in range(count))

    def __str__(self) -> str:
        return f"{self.plane}, seed {self.seed}"

    def names(self, role: str) -> tuple[str, ...]:
        """Of the processes of this role, by slot."""
        if role == COORDINATOR:
            return ("arbitrator",)
        if role == "scheduler":
            return ("scheduler",) if self.servers else ()
        return tuple(name for name in self.hosts if name.startswith(role))

    def fewest_of(self, role: str) -> int:
        """How many of this role are to be there."""
        return {"worker": self.fewest, "server": self.fewest_servers}.get(role, 0)


PLANES = ("byteps", "gloo")
FULL = Plan(events=100, during_s=1800.0, workers=8, fewest=4, pause_s=0.1)
SHORT = Plan(events=20, during_s=60.0, workers=4, fewest=2, pause_s=0.02)


def config_of(plan: Plan, folder: Path, home: str) -> Config:
    """The cluster file, with which all that is written comes to `folder`.

    A lost server takes workers with it that lack a sum which only it had. So more may be missing than by the events.

    Args:
        home: address of the coordinator's host.
    """
    out = ("--out", str(folder), "--pause", str(plan.pause_s))
    return Config(
        name="soak",
        run_dir=str(folder / "runs"),
        comm=plan.plane,
        cluster=Cluster(
            host=home,
            servers=(ServerSection(),) * plan.servers or None,
            workers=(WorkerSection(batch=6),) * plan.workers,
        ),
        batch=BatchBounds(min=1, max=64),
        elastic=Elastic(min_workers=1, restarts=1000),
        window=20,
        policy=PolicySection(name="random"),  # it makes a plan of every clean window
        metrics=Metrics(network="off", tensorboard=False),
        timeouts=Timeouts(rpc_s=1.0, lease_s=plan.lease_s),
        command=("python", "-m", "benchmarks.studies.membership.soak_worker", *out),
    )
