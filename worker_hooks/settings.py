"""The settings of a worker, from its environment: the cluster file, the run folder, the arbitrator's address."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynamix_ps.config import variables
from dynamix_ps.config.schema import Cluster, Config, Metrics, Stigmergy
from dynamix_ps.errors import ConfigError, TrainingError
from dynamix_ps.messages import Plan
from worker_hooks.process.launched import check_connected
from worker_hooks.process.place import check_place

if TYPE_CHECKING:
    from dynamix_ps.rpc.access import ArbitratorAccess


@dataclass(frozen=True, slots=True)
class Settings:
    """The cluster file, and what belongs to this process alone."""

    config: Config  # without a cluster file: no workers, and mode off
    run_dir: Path | None
    run_id: str
    arbitrator: ArbitratorAccess | None = None
    resume: Path | None = None
    slowdown: float = 1.0
    rehearsal: Path | None = None  # the scenario of a rehearsal, in which this process stands for all workers

    def __hash__(self) -> int:
        return hash((self.run_id, self.run_dir))  # a Config has no hash

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """`batch` of every worker in the cluster file, also of workers that join later."""
        return tuple(worker.batch for worker in self.config.cluster.workers)

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Sizes of plan 0; None without a cluster file: then each worker's script names its size."""
        static = self.config.policy.sizes if self.config.policy.name == "static" else None
        return static or self.config.initial_sizes() or None

    @property
    def reference_batch(self) -> int | None:
        """The global batch that the learning rate is for; None without a cluster file: then it is that of plan 0."""
        return sum(self.config.initial_sizes()) or None

    @property
    def bounds(self) -> tuple[tuple[int, int], ...] | None:
        """(smallest, largest) size of every worker; None without a cluster file."""
        return tuple(map(self.config.bounds, self._slots)) or None

    @property
    def accepted_bounds(self) -> tuple[tuple[int, int], ...]:
        """As `bounds`, with 0 where workers come and go."""
        return tuple(map(self.config.accepted_bounds, self._slots))

    @property
    def at_once(self) -> tuple[int | None, ...]:
        """What each worker computes at once. Empty in a rehearsal: the memory of this process is not theirs."""
        return () if self.rehearsal else tuple(map(self.config.at_once, self._slots))

    @property
    def own_sizes(self) -> Stigmergy | None:
        """How every worker chooses its own size; None: no worker does."""
        return self.config.policy.stigmergy if self.config.is_decentralised and not self.rehearsal else None

    @property
    def _slots(self) -> range:
        return range(len(self.config.cluster.workers))

    @property
    def shared(self) -> dict[str, str]:
        """Keys of the cluster file that must be equal on all workers, or their sums mean different things."""
        own = self.own_sizes.model_dump() if self.own_sizes else {}
        return {
            "mode": self.config.mode,
            "batch.unit": self.config.batch.unit,
            "window": str(self.config.window),
            "lr": self.config.lr,
            "lr_rule": self.config.lr_rule,
            "bucket_bytes": str(self.config.bucket_bytes),
            "policy.name": "stigmergy" if own else "another one",
            **{f"policy.stigmergy.{name}": f"{value!r}" for name, value in own.items()},
            **(self._shared_if_elastic if self.config.is_elastic else {}),
        }

    @property
    def _shared_if_elastic(self) -> dict[str, str]:
        """By these, every worker by itself finds who leaves, and who has which part when somebody goes or enters."""
        workers = enumerate(zip(self.slot_sizes, self.bounds or (), strict=True))
        return {
            "elastic.min_workers": str(self.config.elastic.min_workers),
            "elastic.keep": self.config.elastic.keep,
            **{f"cluster.workers[{slot}]": f"{size} ({low} to {high})" for slot, (size, (low, high)) in workers},
        }

    @property
    def guards_rate(self) -> bool:
        """Whether a loss that rises takes the weights back and halves the learning rate."""
        return self.config.lr == "guard" and self.config.mode != "observe"

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables of config/variables.py.

        Raises:
            ConfigError: the cluster file or a value is wrong.
            EnvironmentNotReady: the arbitrator is on another machine, and there are no usable certificates.
            UsageError: several processes were started, and nothing connects them; or another one is this worker.
        """
        check_place(os.environ)
        path = variables.get(variables.CONFIG)
        config = _config_of(Path(path)) if path else _config_without_file()
        if not config.data_plane.uses_network:
            check_connected(os.environ)
        run_dir, resume = variables.get(variables.RUN_DIR), variables.get(variables.RESUME)
        run_id = variables.get(variables.RUN_ID) or uuid.uuid4().hex[:8]
        settings = cls(
            config,
            run_dir=Path(run_dir) if run_dir else None,
            run_id=run_id,
            arbitrator=_arbitrator(config, run_id),
            resume=Path(resume) if resume else None,
            slowdown=_slowdown(),
        )
        rehearsal = variables.get(variables.REHEARSAL)
        return settings.rehearsed(Path(rehearsal)) if rehearsal else settings

    def rehearsed(self, rehearsal: Path) -> Settings:
        """The settings of a process that stands for all workers. Its memory and its speed are not theirs.

        Raises UsageError if several processes were started: each would rehearse all of the cluster.
        """
        check_connected(os.environ)
        metrics = self.config.metrics.model_copy(update={"network": "off"})
        config = self.config.model_copy(update={"comm": "local", "memory": "fixed", "metrics": metrics})
        return replace(self, config=config, rehearsal=rehearsal, slowdown=1.0)

    def first_plan(self, own: tuple[int, ...]) -> Plan:
        """Plan 0: the sizes of the cluster file; without one, each worker's `own`.

        Raises TrainingError if the cluster file names another number of workers than take part.
        """
        sizes = self.sizes or own
        if len(sizes) != len(own):
            raise TrainingError(
                f"the cluster file names {len(sizes)} workers but {len(own)} take part; "
                "DMLC_NUM_WORKER and cluster.workers must agree"
            )
        return Plan(0, sizes)


def _arbitrator(config: Config, run_id: str) -> ArbitratorAccess | None:
    address = variables.get(variables.ARBITRATOR)
    if not address or not config.has_arbitrator:
        return None
    from dynamix_ps.rpc.access import ArbitratorAccess
    from dynamix_ps.rpc.encryption import certificates_for  # with gRPC, which other runs do not need

    token = variables.get(variables.TOKEN) or ""
    return ArbitratorAccess(address, run_id, token, config.timeouts, certificates_for(address, config))


def _config_of(file: Path) -> Config:
    from dynamix_ps.config.load import load_config  # with YAML, which runs without a cluster file do not need

    return load_config(file)


def _config_without_file() -> Config:
    """Batch sizes are fixed, nothing is recorded.

    The data plane is BytePS where a launcher has made this process a worker of a cluster, or a ring if that has no
    servers; otherwise there is none.
    """
    nobody = Cluster.model_construct(workers=())
    comm = "local"
    if variables.get("DMLC_ROLE") == "worker":
        comm = "gloo" if variables.get("DMLC_NUM_SERVER") == "0" else "byteps"
    return Config(cluster=nobody, comm=comm, mode="off", metrics=Metrics(network="off"))


def _slowdown() -> float:
    text = variables.get(variables.SLOWDOWN, "1") or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not factor >= 1:
        raise ConfigError(f"{variables.SLOWDOWN}={text!r}: expected a number of at least 1 (2 means half as fast)")
    return factor
