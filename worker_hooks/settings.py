"""The settings of a worker, from its environment: the cluster file, the run folder, the arbitrator's address."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config, Keep, Stigmergy, Timeouts, Unit
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import ConfigError, TrainingError
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.access import ArbitratorAccess
from worker_hooks.planning.learning_rate import Rule
from worker_hooks.process.launched import check_connected
from worker_hooks.process.place import check_place


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings. Without a cluster file its batch size is fixed (mode off)."""

    comm: str
    mode: str
    sizes: tuple[int, ...] | None  # of plan 0; none: the size that the script of each worker names
    bounds: tuple[tuple[int, int], ...] | None  # (smallest, largest) size of every worker; none: no cluster file
    unit: Unit  # of sizes and bounds
    seed: int
    window: int
    lr_rule: Rule
    reference_batch: int | None  # global batch that the learning rate is for; none: that of plan 0
    prefetch: int
    bucket_bytes: int
    checkpoint_every: int
    checkpoint_on_term: bool
    network: str  # source of network metrics, as in the cluster file
    timeouts: Timeouts
    run_dir: Path | None
    run_id: str
    arbitrator: ArbitratorAccess | None
    resume: Path | None
    slowdown: float
    at_once: tuple[int | None, ...] = ()  # samples that each worker computes at once; empty: no cluster file
    memory: str = "fixed"
    rehearsal: Path | None = None  # what a rehearsal goes by; none: the cluster is real
    lr: str = "follow"  # what happens to the script's learning rate
    keep: Keep = "global"  # what stays where the number of workers changes
    min_workers: int | None = None  # that go on without the others; none: the job is not elastic
    accepted_bounds: tuple[tuple[int, int], ...] = ()  # as `bounds`, with 0 where workers come and go
    slot_sizes: tuple[int, ...] = ()  # `batch` of every worker in the cluster file, also of those that come later
    own_sizes: Stigmergy | None = None  # how every worker chooses its own size; none: no worker does
    micro_batches: bool = False  # sizes may be larger than what a worker computes at once

    @property
    def shared(self) -> dict[str, str]:
        """Keys of the cluster file that must be equal on all workers, or their sums mean different things."""
        own = self.own_sizes.model_dump() if self.own_sizes else {}
        return {
            "mode": self.mode,
            "batch.unit": self.unit,
            "window": str(self.window),
            "lr": self.lr,
            "lr_rule": self.lr_rule,
            "bucket_bytes": str(self.bucket_bytes),
            "policy.name": "stigmergy" if own else "another one",
            **{f"policy.stigmergy.{name}": f"{value!r}" for name, value in own.items()},
            **(self._shared_if_elastic if self.min_workers is not None else {}),
        }

    @property
    def _shared_if_elastic(self) -> dict[str, str]:
        """By these, every worker by itself finds who leaves, and who has which part when somebody goes or enters."""
        workers = enumerate(zip(self.slot_sizes, self.bounds or (), strict=True))
        return {
            "elastic.min_workers": str(self.min_workers),
            "elastic.keep": self.keep,
            **{f"cluster.workers[{slot}]": f"{size} ({low} to {high})" for slot, (size, (low, high)) in workers},
        }

    @property
    def guards_rate(self) -> bool:
        """Whether a loss that rises takes the weights back and halves the learning rate."""
        return self.lr == "guard" and self.mode != "observe"

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
        config = load_config(Path(path)) if path else None
        comm = config.comm if config else _plane_without_file()
        if not DATA_PLANES[comm].uses_network:
            check_connected(os.environ)
        run_dir, resume = variables.get(variables.RUN_DIR), variables.get(variables.RESUME)
        run_id = variables.get(variables.RUN_ID) or uuid.uuid4().hex[:8]
        defaults = Config.model_fields
        settings = cls(
            comm=comm,
            mode=config.mode if config else "off",
            sizes=_first_sizes(config) if config else None,
            bounds=tuple(map(config.bounds, range(len(config.cluster.workers)))) if config else None,
            unit=config.batch.unit if config else "samples",
            seed=config.seed if config else defaults["seed"].default,
            window=config.window if config else defaults["window"].default,
            lr_rule=config.lr_rule if config else defaults["lr_rule"].default,
            reference_batch=sum(config.initial_sizes()) if config else None,
            prefetch=config.prefetch if config else defaults["prefetch"].default,
            bucket_bytes=config.bucket_bytes if config else defaults["bucket_bytes"].default,
            checkpoint_every=config.checkpoint_every if config else 0,
            checkpoint_on_term=config.checkpoint_on_term if config else defaults["checkpoint_on_term"].default,
            network=config.metrics.network if config else "off",
            timeouts=config.timeouts if config else Timeouts(),
            run_dir=Path(run_dir) if run_dir else None,
            run_id=run_id,
            arbitrator=_arbitrator(config, run_id),
            resume=Path(resume) if resume else None,
            slowdown=_slowdown(),
            at_once=tuple(map(config.at_once, range(len(config.cluster.workers)))) if config else (),
            memory=config.memory if config else defaults["memory"].default,
            lr=config.lr if config else defaults["lr"].default,
            keep=config.elastic.keep if config else "global",
            min_workers=config.elastic.min_workers if config else None,
            accepted_bounds=tuple(map(config.accepted_bounds, range(len(config.cluster.workers)))) if config else (),
            slot_sizes=tuple(worker.batch for worker in config.cluster.workers) if config else (),
            own_sizes=config.policy.stigmergy if config and config.is_decentralised else None,
            micro_batches=config is not None and config.batch.micro_batches,
        )
        rehearsal = variables.get(variables.REHEARSAL)
        return settings.rehearsed(Path(rehearsal)) if rehearsal else settings

    def rehearsed(self, rehearsal: Path) -> Settings:
        """The same for a process that stands for all workers. Its memory and its speed are not theirs.

        Raises UsageError if several processes were started: each would rehearse all of the cluster.
        """
        check_connected(os.environ)
        return replace(
            self,
            rehearsal=rehearsal,
            comm="local",
            network="off",
            slowdown=1.0,
            at_once=(),
            memory="fixed",
            own_sizes=None,
        )

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


def _arbitrator(config: Config | None, run_id: str) -> ArbitratorAccess | None:
    address = variables.get(variables.ARBITRATOR)
    if not address or config is None or not config.has_arbitrator:
        return None
    from dynamix_ps.rpc.encryption import certificates_for  # with gRPC, which other runs do not need

    token = variables.get(variables.TOKEN) or ""
    return ArbitratorAccess(address, run_id, token, config.timeouts, certificates_for(address, config))


def _first_sizes(config: Config) -> tuple[int, ...]:
    if config.policy.name == "static" and config.policy.sizes is not None:
        return config.policy.sizes
    return config.initial_sizes()


def _plane_without_file() -> str:
    """BytePS where a launcher has made this process a worker of a cluster, otherwise no network."""
    default: str = Config.model_fields["comm"].default
    return default if variables.get("DMLC_ROLE") == "worker" else "local"


def _slowdown() -> float:
    text = variables.get(variables.SLOWDOWN, "1") or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not factor >= 1:
        raise ConfigError(f"{variables.SLOWDOWN}={text!r}: expected a number of at least 1 (2 means half as fast)")
    return factor
