"""The cluster file: strict pydantic models. `load.load_config` reports every error with file and line.

The text under a field is its description: the reference of the cluster file is made from it.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic_core import PydanticKnownError

from dynamix_ps.config.policies import POLICIES, check_name, entry_of
from dynamix_ps.data_planes import DATA_PLANES, DataPlane

if TYPE_CHECKING:
    DataPlaneName = str
else:
    DataPlaneName = Literal[tuple(DATA_PLANES)]  # the names of the table, for messages and for the reference

logger = logging.getLogger(__name__)

# The batch sizes travel in the float32 trailer of the gradient buffer; up to here their sum is exact.
MAX_GLOBAL_BATCH = 2**24
# A poll of the kernel waits for at most 2**31 ms, which is 2.1e6 s.
MAX_WAIT_S = 1_000_000
_YEAR_S = 366 * 86_400
MAX_SERVERS = 64
MAX_HOSTS = 1024
OWN_HOST = "own"

# Every number has two bounds: a value beyond them is a slip, on which a run would fail late or never end.
BatchSize = Annotated[int, Field(gt=0, le=MAX_GLOBAL_BATCH)]
BatchSizeOrZero = Annotated[int, Field(ge=0, le=MAX_GLOBAL_BATCH)]
Unit = Literal["samples", "tokens", "padded_tokens"]
Keep = Literal["global", "local"]
Windows = Annotated[int, Field(gt=0, le=1_000_000)]
Passes = Annotated[int, Field(gt=0, le=1000)]
Seconds = Annotated[float, Field(ge=0.001, le=MAX_WAIT_S)]
Part = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1000)]
Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9:_][A-Za-z0-9.:_-]*$")]
Speed = Annotated[float, Field(gt=0, le=1_000_000)]
Slots = Annotated[int, Field(ge=0, le=1024)]
Device = Annotated[int, Field(ge=0, le=1023)]


def _plain_off(value: object) -> object:
    """YAML 1.1 reads an unquoted `off` as false; as a mode it means the word."""
    return "off" if value is False else value


def _guard_for_decide(value: Any) -> Any:
    """`lr: decide` of release 0.1 is read as `lr: guard`."""
    if value == "decide":
        logger.warning("lr: decide: nothing decides on the learning rate; write lr: guard, which this is read as")
        return "guard"
    return value


Mode = Annotated[Literal["adapt", "observe", "off"], BeforeValidator(_plain_off)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Host(_Section):
    """One host."""

    address: Annotated[Address | None, Field(examples=["10.0.0.1"])] = None
    """Address or name under which the other hosts reach it. Unset: its name in `hosts`."""
    slots: Annotated[Slots | None, Field(examples=[2])] = None
    """How many workers it may run; with 0, servers alone. Unset: one per device, or 1 where `devices` is unset."""
    devices: Annotated[
        Annotated[tuple[Device, ...], Field(min_length=1, max_length=1024)] | None, Field(examples=[[0, 1]])
    ] = None
    """Numbers of the GPUs that its workers get, one each in turn, as nvidia-smi counts them. Unset: those that
    CUDA_VISIBLE_DEVICES shows there, else all; a worker that is alone on its host then sees them all."""
    speed: Speed = 1.0
    """Expected speed of a worker here, relative to one elsewhere.

    Workers for which the file sets no `batch` share their first sizes in this proportion.
    """

    @property
    def room(self) -> int:
        """How many workers it may run."""
        return (len(self.devices) if self.devices else 1) if self.slots is None else self.slots


class WorkerSection(_Section):
    """One worker."""

    host: Annotated[str | None, Field(examples=["node-1"])] = None
    """Name in `cluster.hosts` of the host on which it runs. Unset: the first one that has a free slot.

    A worker that comes later needs no slot: `dynamix join --host` names a host for it.
    """
    batch: BatchSize = 64
    """Batch size of this worker until the first decision, in units of `batch.unit`."""
    speed: Annotated[float, Field(ge=0.01, le=1)] = 1.0
    """Speed to emulate, as a part of the full speed: 1 is as fast as the machine allows, 0.5 half as fast."""
    min: Annotated[BatchSizeOrZero | None, Field(examples=[8])] = None
    """Smallest batch size of this worker, in units of `batch.unit`. Unset: `batch.min`."""
    max: Annotated[BatchSize | None, Field(examples=[256])] = None
    """Largest batch size of this worker, in units of `batch.unit`. Unset: `batch.max`."""
    at_once: Annotated[BatchSize | None, Field(examples=[64])] = None
    """What this worker computes at once, as its memory allows, in units of `batch.unit`. Unset: `batch.at_once`."""
    later: bool = False
    """Whether its place is empty when the job begins: `dynamix join` starts it. Such workers stand behind all others.

    Its `batch` tells its part of the global batch, compared with the others, when it enters.
    """


class ServerSection(_Section):
    """One parameter server."""

    host: str = OWN_HOST
    """Host on which it runs.

    A name in `cluster.hosts`, or `worker-N`: that of worker N, or `own`: one that runs no worker. Without
    `cluster.hosts` all servers run on the one host there is.
    """


def _read_servers(value: object) -> object:
    """The forms of `cluster.servers` as one: `auto` is None, a number means so many servers on hosts of their own."""
    if value == "auto":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise PydanticKnownError("greater_than_equal", {"ge": 1})
        if value > MAX_SERVERS:
            raise PydanticKnownError("less_than_equal", {"le": MAX_SERVERS})
        return ({},) * value
    if isinstance(value, list):  # from JSON
        return tuple(value)
    if value is None or isinstance(value, tuple):
        return value
    raise ValueError("must be auto, a number, or a list with one entry per server")


def _write_servers(servers: tuple[ServerSection, ...] | None) -> object:
    return "auto" if servers is None else [server.model_dump(mode="json") for server in servers]


def _describe_servers(schema: dict[str, Any]) -> None:
    """JSON schema of the forms that people write."""
    schema["anyOf"] = [
        {"const": "auto"},
        {"type": "integer", "minimum": 1, "maximum": MAX_SERVERS},
        *(form for form in schema["anyOf"] if form.get("type") == "array"),
    ]
    schema["default"] = "auto"


Servers = Annotated[
    Annotated[tuple[ServerSection, ...], Field(min_length=1, max_length=MAX_SERVERS)] | None,
    BeforeValidator(_read_servers),
    PlainSerializer(_write_servers),
    Field(json_schema_extra=_describe_servers, examples=[[{"host": "worker-0"}, {"host": "worker-1"}, {}]]),
]


class Cluster(_Section):
    """The processes of a job and where they listen."""

    hosts: Annotated[
        dict[str, Host], Field(max_length=MAX_HOSTS, examples=[{"node-1": {"slots": 2}, "node-2": {}}])
    ] = {}
    """The hosts by name, in the order in which workers fill their slots. Unset: this machine alone."""
    host: Address = "127.0.0.1"
    """Address on which the scheduler and the arbitrator listen.

    With `hosts`: the name of the host on which they run; unset, that of worker 0.
    """
    port: Port = 0
    """Port of the BytePS scheduler; with `comm: gloo`, of worker 0. 0: the launcher picks a free one."""
    arbitrator_port: Port = 0
    """Port of the arbitrator. 0: the launcher picks a free one."""
    insecure: bool = False
    """Whether calls to the arbitrator go from host to host unencrypted.

    If not, they are encrypted with certificates that the launcher makes for each run. Calls within a host never are.
    """
    servers: Servers = None
    """Parameter servers. Only `comm: byteps` starts any.

    `auto`: one on every host that has workers, so one on a single machine. A number: so many on hosts without workers.
    A list: one entry per server, in the order of their names server-0, server-1 and so on.
    """
    wire: Literal["float32", "bf16", "int8", "auto"] = "float32"
    """How float32 gradients travel, with `comm: byteps` or `gloo`. They are summed in float32 in any case.

    `bf16`: rounded to bfloat16, in half the bytes. `int8`: rounded to 1/127 of the largest of 256 neighbouring values,
    in a quarter of the bytes. What rounding leaves out is added to the next gradients, and by servers to the next sums.
    `auto`: as float32 at first, and in fewer bytes while that makes iterations shorter, on all workers from the same
    iteration on. Once the loss rises, as float32 to the end of the run.
    """
    workers: Annotated[
        tuple[WorkerSection, ...],
        Field(min_length=1, max_length=1024, examples=[[{"batch": 128}, {"batch": 64, "speed": 0.5}]]),
    ]
    """One entry per worker, in the order of their ranks; `{}` is a worker with all defaults."""


class BatchBounds(_Section):
    """Unit and bounds of every worker's batch size. The default is the range of the DYNAMIX paper (IV-C)."""

    unit: Unit = "samples"
    """What batch sizes, bounds, plans and records count.

    `tokens`: a worker takes samples until their tokens fill its size. `padded_tokens`: the same, but every sample of a
    batch counts as many tokens as the longest of them. Both need `lengths=` in `attach`.
    """
    min: BatchSizeOrZero = 32
    """Smallest batch size of a worker, in units of `unit`. 0 allows a policy to give a worker no share at all."""
    max: BatchSize = 1024
    """Largest batch size of a worker, in units of `unit`."""
    at_once: Annotated[BatchSize | None, Field(examples=[64])] = None
    """What a worker computes at once, in units of `unit`; a larger batch is computed in micro-batches. Unset: all."""
    micro_batches: bool = False
    """Whether plans may be larger than what a worker computes at once.

    If not, micro-batches come about only by `min`, the first sizes and the sizes of the policy `static`.
    """

    @property
    def counted(self) -> str:
        """What records count: samples or tokens."""
        return self.unit.removeprefix("padded_")


class Ppo(_Section):
    """The learned policy. docs/method.md tells which values come from the paper and which from us.

    With `learn: true` a key that is not set has the value that the policy file was trained with, where it has one. The
    default counts for the learning rate, epochs and minibatches, and for `file: fresh`.
    """

    space: Literal["structured", "paper"] = "structured"
    """What an action is.

    `structured`: a factor on the advised global batch, and one on each worker's share. `paper`: a step on each size.
    """
    file: Annotated[str | None, Field(examples=["runs/latest/arbitrator/policy.npz"])] = None
    """Policy file to start from. Unset: the file that ships for this space.

    `fresh`: untrained weights, which need `learn: true`.
    """
    learn: bool = False
    """Whether the policy goes on learning while training runs. If not, it always takes the likeliest action."""
    learner: Literal["clip", "simple"] = "clip"
    """How it learns.

    `clip`: PPO with a critic and clipped ratios. `simple`: ratio times discounted return, as in the text of the paper.
    """
    hidden: Annotated[int, Field(gt=0, le=1024)] = 64
    """Width of the two hidden layers of each network, in units. It must be the width of the policy file."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-4
    """Step size of Adam."""
    gamma: Part = 0.95
    """Discount of later rewards, per window."""
    gae_lambda: Part = 0.95
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the rewards that were seen."""
    clip: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Probability ratios are held within 1 - clip and 1 + clip."""
    entropy: Weight = 0.01
    """Weight of the entropy bonus, which keeps the policy exploring."""
    value_weight: Weight = 0.5
    """Weight of the critic's squared error in the loss."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1_000_000)] = 0.5
    """Gradients with a larger norm are scaled down to it."""
    target_kl: Annotated[float, Field(gt=0, le=1000)] | None = 0.03
    """An update ends when the policy has moved this far, as KL divergence. null: it never ends early."""
    epochs: Passes = 4
    """Passes over the collected windows in one update."""
    minibatches: Annotated[int, Field(gt=0, le=10_000)] = 2
    """Parts into which one pass is divided."""
    windows_per_update: Annotated[int, Field(gt=0, le=1000)] = 4
    """Windows with a reward that are collected for one update."""
    reward: Annotated[Literal["goodput", "paper"] | None, Field(examples=["paper"])] = None
    """What the policy is rewarded for. Unset: `goodput` in the space `structured`, `paper` in the space `paper`."""
    alpha: Weight = 1.0
    """Reward `paper`: weight of the gain in accuracy. A weight of 0 leaves a term out."""
    beta: Weight = 0.5
    """Reward `paper`: weight of the time, relative to that of the first windows."""
    delta: Weight = 0.02
    """Reward `paper`: weight of the batch size, as log2(size) - 5."""
    eta: Weight = 0.0
    """Reward `paper`: weight of the gradient noise; for adaptive optimizers."""
    time: Literal["per_iteration", "per_sample"] = "per_iteration"
    """Reward `paper`: which time it counts.

    `per_iteration`: that of an iteration, as published. `per_sample`: the same over the global batch. For a policy that
    does not learn, another value than that of its file is refused.
    """
    efficiency: Weight = 1.0
    """Reward `goodput`: weight of log2 of the training progress of one iteration."""
    throughput: Weight = 1.0
    """Reward `goodput`: weight of log2 of the iterations per second, relative to the first windows."""
    change: Weight = 0.02
    """Reward `goodput`: weight of how far sizes move, as mean |log2(new / old)|."""
    balance: Weight = 0.3
    """Reward `goodput`: weight of a worker's part in the waiting of the others."""


class Pid(_Section):
    """The dynamic-batching controller."""

    keep_global: bool = False
    """Whether every answer is scaled back to the present global batch."""


class LbBsp(_Section):
    """LB-BSP, semi-dynamic load balancing."""

    rule: Literal["cpu", "gpu"] = "cpu"
    """`cpu`: shares by forecast speed. `gpu`: single moves of samples from the slowest worker to the fastest."""


class Stigmergy(_Section):
    """What the traces do that workers lay which choose their own sizes. The workers must have the same values."""

    evaporation: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Part of a trace that is gone one window later; as much of the newest value takes its place. Not of the alarm.

    1: the newest window alone counts. Small: sizes follow noise less, and slow changes later.
    """
    alarm: Annotated[float, Field(ge=0, le=100)] = 2.0
    """What a worker deposits when its speed or its link has changed.

    While it lasts, sizes move by up to this, as natural log of the factor; without it by 3 %.
    """
    calming: Annotated[float, Field(gt=0, le=1)] = 0.35
    """Part of the alarm that is gone one window later."""
    crowding: Annotated[float, Field(ge=0, le=100)] = 0.5
    """How moves are damped: each is divided by 1 + this times the part of the workers that would move. 0: not."""


class Safety(_Section):
    """The safety net of the learned policy: proportional shares take over while it does worse than they would."""

    enabled: bool = True
    """Whether there is a safety net."""
    worse_windows: Windows = 5
    """It takes over after so many windows in a row in which the policy does worse."""
    margin: Part = 0.1
    """A window is worse if its goodput is lower by more than this part of what proportional shares would reach."""
    rest_windows: Windows = 20
    """Proportional shares decide for so many windows; then the policy decides again."""


class PolicySection(_Section):
    """What chooses the batch sizes."""

    name: Annotated[
        str,
        AfterValidator(check_name),
        Field(
            description="Which policy decides.\n\n"
            f"One that ships ({', '.join(f'`{name}`' for name in POLICIES)}), or the class of another one as "
            "`package.module:Class`, a subclass of `dynamix_ps.policy.base.Policy` that can be imported where the job "
            "is launched.",
            examples=["ppo", "my_package.my_module:MyPolicy"],
        ),
    ] = "proportional"
    sizes: Annotated[tuple[BatchSize, ...] | None, Field(examples=[[96, 32]])] = None
    """Only for `static`: the size of each worker, in samples. Unset: each keeps the size that the run begins with."""
    remember: bool = False
    """Whether speeds are kept in `~/.cache/dynamix/speeds`, for the next run of the same script on the same hosts.

    That run begins with sizes by these speeds, with the global batch of the first sizes. If the first second of
    training contradicts the speeds, it goes back to the first sizes. Only for policies that measure speeds.
    """
    pid: Pid = Pid()
    """Only for `pid`."""
    lbbsp: LbBsp = LbBsp()
    """Only for `lbbsp`."""
    ppo: Ppo = Ppo()
    """Only for `ppo`."""
    safety: Safety = Safety()
    """Only for `ppo`."""
    stigmergy: Stigmergy = Stigmergy()
    """Only for `stigmergy`."""
    options: Annotated[dict[str, Any], Field(examples=[{"step": 0.1}])] = {}
    """Only for `package.module:Class`: arguments of its constructor, beside those that every policy gets."""

    @property
    def own_keys(self) -> tuple[str, ...]:
        """The keys of this section that only the policy of this name takes."""
        return entry_of(self.name).keys

    @property
    def foreign_keys(self) -> tuple[str, ...]:
        """The keys that are set although only another policy takes them."""
        foreign = self.model_fields_set - {"name", *self.own_keys}
        return tuple(key for key in type(self).model_fields if key in foreign and getattr(self, key) is not None)

    def without_foreign_keys(self) -> PolicySection:
        """The same policy; keys that only another one takes are as if nobody had set them."""
        return PolicySection.model_validate(self.model_dump(include={"name", *self.own_keys}, exclude_unset=True))


class Timeouts(_Section):
    """Limits of time, in seconds. The first four must grow from one to the next, and `job_s` exceed `launch_s`."""

    rpc_s: Seconds = 2.0
    """Deadline of one call to the arbitrator, in seconds."""
    lease_s: Seconds = 6.0
    """A worker of which the arbitrator hears nothing for so many seconds counts as absent.

    With `elastic.min_workers`, the others go on without it if a server has waited for it as long and got no answer. So
    they do without a server for which workers wait.
    """
    stall_warn_s: Seconds = 10.0
    """A worker that waits so many seconds for a gradient sum says for whom it waits."""
    stall_fail_s: Seconds = 120.0
    """A worker that waits so many seconds for a gradient sum gives up, and the job ends."""
    launch_s: Seconds = 120.0
    """The job ends if a worker does not start training within so many seconds."""
    job_s: Annotated[Annotated[float, Field(ge=0.001, le=_YEAR_S)] | None, Field(examples=[3600.0])] = None
    """The job ends after so many seconds in all. Unset: no limit."""


class LaunchSection(_Section):
    """How the workers of a job are started."""

    fork: bool = True
    """Whether the workers of a host are forked from one process that has imported torch, where they are several.

    A worker is a new process, which imports torch itself, where its command is no script of this Python or uses MXNet,
    and where a variable differs that a library reads when it is imported.
    """


class Metrics(_Section):
    """What is measured beside training, and where it can be watched."""

    network: Annotated[Literal["auto", "ebpf", "sockdiag", "procfs", "off"], BeforeValidator(_plain_off)] = "auto"
    """Source of network values. `auto`: the best one that works here; a name: that one alone; `off`: none."""
    interval_s: Annotated[float, Field(ge=0.01, le=3600)] = 1.0
    """Time between two reports of a server or the scheduler, in seconds."""
    prometheus_host: Address = "127.0.0.1"
    """Address of the Prometheus endpoint. `0.0.0.0` opens it to other machines, without a password."""
    prometheus_port: Port | None = 0
    """Port of the Prometheus endpoint. 0: any free one, named in the arbitrator's log; null: no endpoint."""
    tensorboard: bool = True
    """Whether TensorBoard events are written to `tensorboard/` in the run folder."""


class Elastic(_Section):
    """What happens where the number of workers changes: a checkpoint goes on with more or fewer of them."""

    keep: Keep = "global"
    """What stays; the learning rate follows the global batch by `lr_rule`.

    `global`: the global batch, which the workers that are there share. `local`: what a worker has of it on average.
    """
    min_workers: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, Field(examples=[3])] = None
    """A worker lost while training runs does not end the job as long as so many are left (not with `comm: local`).

    The others finish the iteration at hand without it, and take over its samples. Workers may also leave on notice, as
    long as so many stay. Nor does a lost server end the job, as long as another one is left. Unset: whoever is lost
    ends the job.
    """
    max_workers: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, Field(examples=[4])] = None
    """So many workers take part at most: those of `cluster.workers`, and others that `dynamix join` starts later.

    The others are as the last one of `cluster.workers`, each on the first host that has a free slot, or on the one that
    `dynamix join --host` names. Unset: as many as `cluster.workers` names.
    """
    join_wait_s: Annotated[float, Field(ge=0, le=_YEAR_S)] = 60.0
    """With fewer than `min_workers`, the others wait so many seconds for workers that enter.

    Then they finish the iteration at hand, and end with a checkpoint.
    """
    restarts: Annotated[int, Field(ge=0, le=1000)] = 0
    """How often a worker or server that is lost is started again, each one, and the whole job where nobody is left.

    It prepares while the others train, and enters. A worker that ends before, because others are gone, is started again
    without counting. The job begins again from its newest checkpoint, on the hosts that are left.
    """


class Config(_Section):
    """A job: its cluster, how batch sizes are chosen, and what every worker runs."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] = "run"
    """Name of the job; run folders are called after it."""
    run_dir: str = "runs"
    """Folder in which each run gets a folder of its own, relative to where the job is launched."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of the order of the samples and of what the policy draws."""
    comm: DataPlaneName = "byteps"
    """Data plane. `byteps`: parameter servers. `gloo`: ring all-reduce without servers. `local`: one worker alone."""
    mode: Mode = "adapt"
    """Whether batch sizes change.

    `adapt`: plans take effect. `observe`: plans are decided and recorded, sizes stay. `off`: sizes stay, and there is
    neither arbitrator nor record.
    """
    cluster: Cluster
    """The processes of the job."""
    batch: BatchBounds = BatchBounds()
    """Bounds of every worker's batch size."""
    memory: Literal["fixed", "auto"] = "fixed"
    """What happens where memory runs out.

    `fixed`: the job ends, and says which size fitted. `auto`: the worker finds out how many samples fit, and goes on
    with the same batch in micro-batches (torch).
    """
    window: Annotated[int, Field(gt=0, le=1_000_000)] = 20
    """Iterations per decision; k in the paper."""
    lr: Annotated[Literal["script", "follow", "guard"], BeforeValidator(_guard_for_decide)] = "follow"
    """What happens to the script's learning rate; its schedulers go on in any case.

    `script`: nothing. `follow`: it follows the global batch by `lr_rule`. `guard`: in addition, a loss that
    rises takes the weights back and halves the rate.
    """
    lr_rule: Literal["none", "linear", "sqrt", "adascale"] = "none"
    """How the script's learning rate follows the global batch B, relative to the sum of the first sizes.

    `linear`: as B. `sqrt`: as the square root of B. `adascale`: as the measured gradient noise allows. `none`: not.
    """
    prefetch: Annotated[int, Field(ge=0, le=64)] = 0
    """Batches that are prepared ahead; a plan takes effect so many iterations later. 0: none.

    For a torch `DataLoader` with worker processes its own depth counts instead.
    """
    bucket_bytes: Annotated[int, Field(gt=0, le=2**30)] = 4_000_000
    """A buffer with so many bytes of gradients is sent.

    Between hosts on slow links smaller ones are, so that most leave while the backward pass still runs.
    """
    overlap: Literal["backward", "next_forward"] = "backward"
    """What runs while sums of gradients are under way (torch).

    `backward`: the backward pass, and `run.backward()` returns when all sums are there. `next_forward`: also what comes
    between, and the next forward pass; each layer waits for its own weights. Whatever else reads gradients or weights
    before waits too.
    """
    emulation: Literal["auto", "cgroup", "hook", "none"] = "auto"
    """How the speeds of `cluster.workers` come about.

    `cgroup`: by CPU quota. `hook`: the hook waits after each batch. `auto`: by quota where that is permitted, otherwise
    by the hook. `none`: every worker runs as fast as the machine allows.
    """
    target_accuracy: Annotated[Annotated[float, Field(gt=0, le=1)] | None, Field(examples=[0.85])] = None
    """Test accuracy from 0 to 1; the summary tells when it was reached. Unset: no target."""
    checkpoint_every: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Iterations between two checkpoints. 0: only when the script saves one."""
    checkpoint_on_term: bool = True
    """Whether a job that saves checkpoints writes one at SIGTERM, before it ends."""
    elastic: Elastic = Elastic()
    """What happens where the number of workers changes."""
    launch: LaunchSection = LaunchSection()
    """How the workers are started."""
    policy: PolicySection = PolicySection()
    """What chooses the batch sizes."""
    metrics: Metrics = Metrics()
    """What is measured beside training, and where it can be watched."""
    timeouts: Timeouts = Timeouts()
    """Limits of time."""
    command: Annotated[tuple[str, ...], Field(examples=[["python", "train.py", "--epochs", "3"]])] = ()
    """What every worker runs when no command is given after `--`. `python` is the interpreter of this installation."""
    sync: Literal["none", "rsync"] = "none"
    """How the code gets to other hosts.

    `none`: it is there, under the same path. `rsync`: before the run, the folder from which the job is launched (or
    that of a script which is elsewhere) is copied there, without .git, .venv, __pycache__ and runs. Nothing is deleted.
    """
    env: Annotated[dict[str, str], Field(examples=[{"OMP_NUM_THREADS": "2"}])] = {}
    """Further environment variables of every worker. Those that the launcher sets are refused."""

    @property
    def data_plane(self) -> DataPlane:
        """What `comm` names."""
        return DATA_PLANES[self.comm]

    @property
    def is_decentralised(self) -> bool:
        """Whether every worker chooses its own size."""
        return self.mode == "adapt" and not entry_of(self.policy.name).central

    @property
    def has_arbitrator(self) -> bool:
        """Whether there is one: it decides for all workers, or in an elastic job on who is lost and enters."""
        return self.mode != "off" and (self.is_elastic or not self.is_decentralised)

    def bounds(self, rank: int) -> tuple[int, int]:
        """(smallest, largest) batch size of a worker."""
        worker = self.cluster.workers[rank]
        low = self.batch.min if worker.min is None else worker.min
        high = self.batch.max if worker.max is None else worker.max
        return low, high

    def at_once(self, rank: int) -> int | None:
        """What a worker computes at once, in units of `batch.unit`; None: any number."""
        own = self.cluster.workers[rank].at_once
        return self.batch.at_once if own is None else own

    def bounds_at_once(self, rank: int, at_once: float) -> tuple[int, int]:
        """Bounds for the plans of a worker that computes so much at once; NaN: there is no limit."""
        bounds = self.bounds(rank)
        return bounds if self.batch.micro_batches or self.policy.name == "static" else bounds_within(bounds, at_once)

    @property
    def later(self) -> frozenset[int]:
        """Ranks of the workers whose places are empty when the job begins."""
        return frozenset(rank for rank, worker in enumerate(self.cluster.workers) if worker.later)

    @property
    def first_workers(self) -> int:
        """How many workers the job begins with."""
        return len(self.cluster.workers) - len(self.later)

    @property
    def is_elastic(self) -> bool:
        """Whether workers and servers may come and go while the others train."""
        return self.elastic.min_workers is not None

    def accepted_bounds(self, rank: int) -> tuple[int, int]:
        """Bounds of what a plan may have for a worker: those of `bounds`, and 0 where workers come and go."""
        low, high = self.bounds(rank)
        return (low if self.elastic.min_workers is None else 0), high

    def initial_sizes(self) -> tuple[int, ...]:
        """First sizes of the workers, 0 for those that come later; the learning rate is for their sum."""
        return tuple(0 if worker.later else worker.batch for worker in self.cluster.workers)


def bounds_within(bounds: tuple[int, int], at_once: float) -> tuple[int, int]:
    """Bounds of a worker that has no more than `at_once`, or its smallest size; NaN: there is no limit."""
    low, high = bounds
    return bounds if math.isnan(at_once) else (low, max(low, min(high, int(at_once))))
