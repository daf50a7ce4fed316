"""The YAML of a cluster: strict pydantic models. `config_file.load_config` turns every error into file:line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dynamix_ps.data_planes import DATA_PLANES, DataPlane

if TYPE_CHECKING:
    DataPlaneName = str
else:
    DataPlaneName = Literal[tuple(DATA_PLANES)]  # the names of the table, for messages and for the reference

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]  # 0: the launcher picks a free one
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]+$")]


def _plain_off(value: object) -> object:
    """YAML 1.1 reads an unquoted `off` as false; as a mode it means the word."""
    return "off" if value is False else value


Mode = Annotated[Literal["adapt", "observe", "off"], BeforeValidator(_plain_off)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Worker(_Section):
    """One worker: its first batch size, its own bounds where they differ, and its emulated speed."""

    batch: PositiveInt = 64
    speed: Annotated[float, Field(ge=0.01, le=1)] = 1.0  # 1: as fast as the machine allows
    min: Annotated[int, Field(ge=0)] | None = None
    max: PositiveInt | None = None


class Cluster(_Section):
    host: Host = "127.0.0.1"
    port: Port = 0
    arbitrator_port: Port = 0
    servers: Annotated[int, Field(ge=1, le=64)] = 1
    workers: Annotated[tuple[Worker, ...], Field(min_length=1, max_length=1024)]


class BatchBounds(_Section):
    """Bounds of every worker's batch size; the paper's range (DYNAMIX, IV-C)."""

    min: Annotated[int, Field(ge=0)] = 32
    max: PositiveInt = 1024


class Ppo(_Section):
    """The learned policy. What the paper leaves open is chosen by us (docs/method.md)."""

    space: Literal["structured", "paper"] = "structured"  # what an action is (policy/actions.py)
    file: str | None = None  # a policy file, or `fresh`: untrained; none: the one that ships for this space
    learn: bool = False  # no: inference, the likeliest action; yes: fine-tuning while training runs
    learner: Literal["clip", "simple"] = "clip"
    hidden: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-4
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    clip: PositiveFloat = 0.2
    entropy: Annotated[float, Field(ge=0)] = 0.01
    value_weight: Annotated[float, Field(ge=0)] = 0.5
    max_grad_norm: PositiveFloat = 0.5
    target_kl: PositiveFloat | None = 0.03  # passes over a batch end when the policy has moved this far
    epochs: PositiveInt = 4
    minibatches: PositiveInt = 2
    windows_per_update: PositiveInt = 4
    reward: Literal["goodput", "paper"] | None = None  # none: goodput for structured, paper for paper
    alpha: Annotated[float, Field(ge=0)] = 1.0  # reward `paper`: weights of its terms, 0 leaves one out
    beta: Annotated[float, Field(ge=0)] = 0.5
    delta: Annotated[float, Field(ge=0)] = 0.02
    eta: Annotated[float, Field(ge=0)] = 0.0
    efficiency: Annotated[float, Field(ge=0)] = 1.0  # reward `goodput`: weights of its terms
    throughput: Annotated[float, Field(ge=0)] = 1.0
    change: Annotated[float, Field(ge=0)] = 0.02
    balance: Annotated[float, Field(ge=0)] = 0.3


class Pid(_Section):
    """The dynamic-batching controller (policy/pid.py)."""

    keep_global: bool = False  # scale every answer back to the present global batch


class LbBsp(_Section):
    """LB-BSP (policy/lbbsp.py)."""

    rule: Literal["cpu", "gpu"] = "cpu"  # shares by predicted speed, or moves from the straggler to the leader


class Safety(_Section):
    """When a learned policy does worse than proportional shares would, they take over for a while (chosen by us)."""

    enabled: bool = True
    worse_windows: PositiveInt = 5  # so many windows in a row
    margin: Annotated[float, Field(ge=0)] = 0.1  # by more than this part of the estimated goodput
    rest_windows: PositiveInt = 20  # then proportional for so long


class Policy(_Section):
    name: Literal["static", "proportional", "pid", "lbbsp", "lbb", "goodput", "random", "ppo"] = "proportional"
    sizes: tuple[PositiveInt, ...] | None = None  # static: a vector in place of the initial sizes
    pid: Pid = Pid()
    lbbsp: LbBsp = LbBsp()
    ppo: Ppo = Ppo()
    safety: Safety = Safety()


class Timeouts(_Section):
    """Seconds. The first four must grow from one to the next, and job_s exceed launch_s; the loader checks it."""

    rpc_s: PositiveFloat = 2.0
    lease_s: PositiveFloat = 6.0
    stall_warn_s: PositiveFloat = 10.0
    stall_fail_s: PositiveFloat = 120.0
    launch_s: PositiveFloat = 120.0
    job_s: PositiveFloat | None = None  # whole run; none: no limit


class Metrics(_Section):
    """What is measured beside training, and where it can be watched."""

    network: Annotated[Literal["auto", "ebpf", "sockdiag", "procfs", "off"], BeforeValidator(_plain_off)] = "auto"
    interval_s: PositiveFloat = 1.0  # between reports of servers and scheduler
    prometheus_host: Host = "127.0.0.1"
    prometheus_port: Port | None = 0  # 0: any free one, named in the arbitrator's log; null: no endpoint
    tensorboard: bool = True


class Config(_Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] = "run"
    run_dir: str = "runs"
    seed: Annotated[int, Field(ge=0)] = 0
    comm: DataPlaneName = "byteps"  # parameter server, or gloo: ring all-reduce, or local: a single worker
    mode: Mode = "adapt"
    cluster: Cluster
    batch: BatchBounds = BatchBounds()
    window: PositiveInt = 20  # iterations per decision (k in the paper)
    lr_rule: Literal["none", "linear", "sqrt", "adascale"] = "none"
    prefetch: Annotated[int, Field(ge=0, le=64)] = 0  # batches prepared ahead = iterations a plan takes effect later
    bucket_bytes: PositiveInt = 4_000_000
    emulation: Literal["auto", "cgroup", "hook", "none"] = "auto"
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    checkpoint_every: Annotated[int, Field(ge=0)] = 0  # iterations, 0: only when the script asks
    policy: Policy = Policy()
    metrics: Metrics = Metrics()
    timeouts: Timeouts = Timeouts()
    command: tuple[str, ...] = ()  # what each worker runs when none is given after `--`
    env: dict[str, str] = {}  # extra variables of every worker

    @property
    def data_plane(self) -> DataPlane:
        """What `comm` names."""
        return DATA_PLANES[self.comm]

    def bounds(self, rank: int) -> tuple[int, int]:
        """(smallest, largest) batch size of a worker."""
        worker = self.cluster.workers[rank]
        low = self.batch.min if worker.min is None else worker.min
        high = self.batch.max if worker.max is None else worker.max
        return low, high

    def initial_sizes(self) -> tuple[int, ...]:
        """First sizes of the workers; the learning rate is for their sum."""
        return tuple(worker.batch for worker in self.cluster.workers)
