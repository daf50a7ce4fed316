from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Plan(_message.Message):
    __slots__ = ("version", "batch_sizes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    version: int
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., batch_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("rank", "incarnation")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: str
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("identity", "host", "pid", "plan")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    host: str
    pid: int
    plan: Plan
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class WindowRecord(_message.Message):
    __slots__ = ("window", "first_iteration", "iterations", "plan_version", "batch_size", "samples", "duration_s", "compute_s", "push_pull_s", "wait_s", "input_s", "loss", "accuracy", "global_samples", "global_loss", "global_accuracy", "grad_sq_local", "grad_sq_global", "grad_norm_std", "bytes_pushed", "cpu_ratio", "memory_bytes", "retransmits_per_s", "flagged", "accuracy_std", "noise_variance", "noise_signal", "epoch", "cpu_cores", "throttled", "memory_ratio", "gpu_utilisation", "gpu_memory_ratio", "network_source", "network_age_s", "push_bytes_per_s", "pull_bytes_per_s", "rtt_s", "push_busy", "trained_ratio", "lr_ratio")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    FIRST_ITERATION_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_PULL_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_LOSS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    GRAD_SQ_LOCAL_FIELD_NUMBER: _ClassVar[int]
    GRAD_SQ_GLOBAL_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_STD_FIELD_NUMBER: _ClassVar[int]
    BYTES_PUSHED_FIELD_NUMBER: _ClassVar[int]
    CPU_RATIO_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETRANSMITS_PER_S_FIELD_NUMBER: _ClassVar[int]
    FLAGGED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_STD_FIELD_NUMBER: _ClassVar[int]
    NOISE_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    NOISE_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RATIO_FIELD_NUMBER: _ClassVar[int]
    GPU_UTILISATION_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_RATIO_FIELD_NUMBER: _ClassVar[int]
    NETWORK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PULL_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_BUSY_FIELD_NUMBER: _ClassVar[int]
    TRAINED_RATIO_FIELD_NUMBER: _ClassVar[int]
    LR_RATIO_FIELD_NUMBER: _ClassVar[int]
    window: int
    first_iteration: int
    iterations: int
    plan_version: int
    batch_size: int
    samples: int
    duration_s: float
    compute_s: float
    push_pull_s: float
    wait_s: float
    input_s: float
    loss: float
    accuracy: float
    global_samples: int
    global_loss: float
    global_accuracy: float
    grad_sq_local: float
    grad_sq_global: float
    grad_norm_std: float
    bytes_pushed: int
    cpu_ratio: float
    memory_bytes: float
    retransmits_per_s: float
    flagged: bool
    accuracy_std: float
    noise_variance: float
    noise_signal: float
    epoch: float
    cpu_cores: float
    throttled: float
    memory_ratio: float
    gpu_utilisation: float
    gpu_memory_ratio: float
    network_source: str
    network_age_s: float
    push_bytes_per_s: float
    pull_bytes_per_s: float
    rtt_s: float
    push_busy: float
    trained_ratio: float
    lr_ratio: float
    def __init__(self, window: _Optional[int] = ..., first_iteration: _Optional[int] = ..., iterations: _Optional[int] = ..., plan_version: _Optional[int] = ..., batch_size: _Optional[int] = ..., samples: _Optional[int] = ..., duration_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., push_pull_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., input_s: _Optional[float] = ..., loss: _Optional[float] = ..., accuracy: _Optional[float] = ..., global_samples: _Optional[int] = ..., global_loss: _Optional[float] = ..., global_accuracy: _Optional[float] = ..., grad_sq_local: _Optional[float] = ..., grad_sq_global: _Optional[float] = ..., grad_norm_std: _Optional[float] = ..., bytes_pushed: _Optional[int] = ..., cpu_ratio: _Optional[float] = ..., memory_bytes: _Optional[float] = ..., retransmits_per_s: _Optional[float] = ..., flagged: bool = ..., accuracy_std: _Optional[float] = ..., noise_variance: _Optional[float] = ..., noise_signal: _Optional[float] = ..., epoch: _Optional[float] = ..., cpu_cores: _Optional[float] = ..., throttled: _Optional[float] = ..., memory_ratio: _Optional[float] = ..., gpu_utilisation: _Optional[float] = ..., gpu_memory_ratio: _Optional[float] = ..., network_source: _Optional[str] = ..., network_age_s: _Optional[float] = ..., push_bytes_per_s: _Optional[float] = ..., pull_bytes_per_s: _Optional[float] = ..., rtt_s: _Optional[float] = ..., push_busy: _Optional[float] = ..., trained_ratio: _Optional[float] = ..., lr_ratio: _Optional[float] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("identity", "record", "observed")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    record: WindowRecord
    observed: ObserveRequest
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., record: _Optional[_Union[WindowRecord, _Mapping]] = ..., observed: _Optional[_Union[ObserveRequest, _Mapping]] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("identity", "iteration")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    iteration: int
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., iteration: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "iteration", "silent_s", "alive")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    iteration: int
    silent_s: float
    alive: bool
    def __init__(self, rank: _Optional[int] = ..., iteration: _Optional[int] = ..., silent_s: _Optional[float] = ..., alive: bool = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("identity",)
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlansRequest(_message.Message):
    __slots__ = ("identity", "newest_version")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    newest_version: int
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., newest_version: _Optional[int] = ...) -> None: ...

class SystemSample(_message.Message):
    __slots__ = ("cpu_ratio", "cpu_cores", "throttled", "memory_bytes", "memory_ratio", "gpu_utilisation", "gpu_memory_ratio")
    CPU_RATIO_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RATIO_FIELD_NUMBER: _ClassVar[int]
    GPU_UTILISATION_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_RATIO_FIELD_NUMBER: _ClassVar[int]
    cpu_ratio: float
    cpu_cores: float
    throttled: float
    memory_bytes: float
    memory_ratio: float
    gpu_utilisation: float
    gpu_memory_ratio: float
    def __init__(self, cpu_ratio: _Optional[float] = ..., cpu_cores: _Optional[float] = ..., throttled: _Optional[float] = ..., memory_bytes: _Optional[float] = ..., memory_ratio: _Optional[float] = ..., gpu_utilisation: _Optional[float] = ..., gpu_memory_ratio: _Optional[float] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("local", "remote", "bytes_out", "bytes_in", "retransmits", "busy_s", "rtt_s", "unsent_bytes", "unread_bytes")
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    RETRANSMITS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    UNSENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNREAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    local: str
    remote: str
    bytes_out: float
    bytes_in: float
    retransmits: float
    busy_s: float
    rtt_s: float
    unsent_bytes: float
    unread_bytes: float
    def __init__(self, local: _Optional[str] = ..., remote: _Optional[str] = ..., bytes_out: _Optional[float] = ..., bytes_in: _Optional[float] = ..., retransmits: _Optional[float] = ..., busy_s: _Optional[float] = ..., rtt_s: _Optional[float] = ..., unsent_bytes: _Optional[float] = ..., unread_bytes: _Optional[float] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("name", "role", "rank", "host", "pid", "time_s", "network_source", "network_age_s", "flows", "system")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    NETWORK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    rank: int
    host: str
    pid: int
    time_s: float
    network_source: str
    network_age_s: float
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    system: SystemSample
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., time_s: _Optional[float] = ..., network_source: _Optional[str] = ..., network_age_s: _Optional[float] = ..., flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., system: _Optional[_Union[SystemSample, _Mapping]] = ...) -> None: ...

class ObserveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
