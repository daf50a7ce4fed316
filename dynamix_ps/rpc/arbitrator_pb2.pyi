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
    __slots__ = ("identity", "host", "pid", "plan", "work")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    host: str
    pid: int
    plan: Plan
    work: str
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., work: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class WindowRecord(_message.Message):
    __slots__ = ("window", "first_iteration", "iterations", "plan_version", "batch_size", "samples", "global_samples", "bytes_pushed", "flagged", "network_source", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    FIRST_ITERATION_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PUSHED_FIELD_NUMBER: _ClassVar[int]
    FLAGGED_FIELD_NUMBER: _ClassVar[int]
    NETWORK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    window: int
    first_iteration: int
    iterations: int
    plan_version: int
    batch_size: int
    samples: int
    global_samples: int
    bytes_pushed: int
    flagged: bool
    network_source: str
    values: _containers.ScalarMap[str, float]
    def __init__(self, window: _Optional[int] = ..., first_iteration: _Optional[int] = ..., iterations: _Optional[int] = ..., plan_version: _Optional[int] = ..., batch_size: _Optional[int] = ..., samples: _Optional[int] = ..., global_samples: _Optional[int] = ..., bytes_pushed: _Optional[int] = ..., flagged: bool = ..., network_source: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

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
    class SystemEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
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
    system: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., time_s: _Optional[float] = ..., network_source: _Optional[str] = ..., network_age_s: _Optional[float] = ..., flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., system: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ObserveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MembershipMessage(_message.Message):
    __slots__ = ("sender", "kind", "fields")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    sender: Role
    kind: str
    fields: str
    def __init__(self, sender: _Optional[_Union[Role, _Mapping]] = ..., kind: _Optional[str] = ..., fields: _Optional[str] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("role", "slot", "incarnation", "address", "state_address")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    role: str
    slot: int
    incarnation: str
    address: str
    state_address: str
    def __init__(self, role: _Optional[str] = ..., slot: _Optional[int] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., state_address: _Optional[str] = ...) -> None: ...
