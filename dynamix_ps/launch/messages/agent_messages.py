"""The messages between the launcher and the agents of the hosts, and their form on a stream. Pure; checks every value.

A message is one JSON line with its kind and its fields. If bytes follow, the line says how many:

    {"kind": "roleoutput", "role": "worker-0", "last": false, "data_bytes": 5}
    hello

The agent speaks first (`hello`). What a login shell prints before that is skipped.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dynamix_ps.bounded_json import value_in

PROTOCOL = 4
MAX_LINE_BYTES = 4 << 20  # a cluster file has at most 1 MB, which JSON may write in four
MAX_DATA_BYTES = 1 << 20
_MAX_GREETING_BYTES = 64 << 10
_HELLO = b'{"kind": "hello"'


class StreamError(Exception):
    """The stream holds something else than a message."""


# -- from the launcher to an agent ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inspect:
    """Report the facts of this host, and listen for the other hosts until `Prepare`. Answer: `Inspected`."""

    host: str  # this one's name in the cluster file
    address: str  # what the cluster file calls its address
    peers: tuple[str, ...]  # addresses of the other hosts that have roles
    cwd: str
    code: str  # folder whose Python files are told
    ports: dict[str, int]  # those that roles here are to have, by their keys in the cluster file


@dataclass(frozen=True, slots=True)
class Reach:
    """Connect to other hosts that listen; the lists have one entry per port. Answer: `Reached`."""

    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    rate_s: float  # send as much as possible for so long, to each in turn; 0: connect alone


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get ready for a run: quotas, probe, ports. Answer: `Prepared` or `RequestRefused`."""

    run_id: str
    host: str  # this one's name in the cluster file
    peers: tuple[str, ...]  # addresses of the other hosts that have roles
    cwd: str
    run_dir: str  # the launcher's run folder, if this is its machine; empty: the agent makes one of its own
    config: str  # text of the cluster file with all hosts written out; empty where it is in `run_dir`
    resume: str  # checkpoint to go on from: absolute, or a path in the agent's run folder that came before
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the roles of this host, except those that start later."""

    addresses: dict[str, str]  # by name of the host
    port: int
    arbitrator_port: int
    certificates: dict[str, str] = field(default_factory=dict, repr=False)  # fields of Certificates; none: in the clear
    late: bool = False  # the host has come back to a job that goes on: start none before `StartAgain`


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start a role of this host again that has ended. `starts`: how often it was started before."""

    role: str
    starts: int


@dataclass(frozen=True, slots=True)
class ForCoordinator:
    """To the home of the roles, for the coordinator of an elastic job there: a worker or server has ended, or is lost
    with its host, or a worker shall leave."""

    role: str
    number: int
    incarnation: str
    request: int = 0  # the number of those to this process to leave, from 1 on; 0: it has ended


@dataclass(frozen=True, slots=True)
class SetSpeeds:
    """All workers train: emulate these speeds from now on. Empty: the speeds of the cluster file."""

    speeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to roles and to all processes in their groups."""

    roles: tuple[str, ...]
    number: int


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The run is over: send the rest of the files, remove everything, answer `CleanedUp`."""


# -- from an agent to the launcher ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of an agent. The launcher sends nothing before it."""

    protocol: int
    version: str  # of this package
    python: str
    hostname: str
    pid: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """Answer to `Inspect`. Unknown facts are empty."""

    address: str  # under which the other hosts reach this one
    ports: dict[str, int]  # on which it listens: by their keys, and a free one under ""
    problem: str  # why it has no address, or cannot listen
    cwd_problem: str  # why it cannot go to that folder
    versions: dict[str, str]  # of Python and of packages
    package: str  # digest of the files of this package
    code: dict[str, str]  # digest of each Python file, by its path in the folder
    code_problem: str  # why they are not told
    memory_bytes: int  # free
    gpus: tuple[str, ...]  # their models
    clock_s: float  # since 1970, when this was sent
    took_s: float  # from `Inspect` until then


@dataclass(frozen=True, slots=True)
class Reached:
    """Answer to `Reach`, with one entry per port."""

    problems: tuple[str, ...]  # empty: it is open
    round_trips_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answer to `Prepare`."""

    address: str  # under which the other hosts reach this one
    port: int  # of the scheduler, free at this moment; 0 on hosts other than the home of the roles
    arbitrator_port: int
    emulation: str  # how speeds are emulated, in words


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The agent could not do what a message asked, so the run ends with this code and reason."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """A role runs."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleOutput:
    """Output of a role. `last`: nothing follows."""

    role: str
    last: bool
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RoleEnded:
    """A role has ended, `ago_s` before this message was sent."""

    role: str
    exit_code: int  # negative for a signal
    ago_s: float


@dataclass(frozen=True, slots=True)
class Suspended:
    """SIGSTOP or a debugger has begun or ceased to hold a role."""

    role: str
    suspended: bool


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event for the record of the run."""

    event: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Notice:
    """This host has to end, for its batch system or because it goes down: the run should end in order."""

    signal: str  # its name


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """Answer to `CleanUp`: nothing of the run is left on this host. No message follows."""


# -- both ways --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file of the run folder.

    A growing file comes in successive parts. A replaced file comes whole: `total_bytes` is its length, and it takes
    effect when its last part is there.
    """

    path: str  # relative to the run folder
    offset: int
    total_bytes: int  # -1: the file grows
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Alive:
    """A sign of life, sent regularly: a side that receives nothing for LEASE_S counts the other as lost."""


ToAgent = (
    Inspect | Reach | Prepare | Begin | StartAgain | ForCoordinator | SetSpeeds | Signal | CleanUp | FilePart | Alive
)
FromAgent = (
    Hello
    | Inspected
    | Reached
    | Prepared
    | RequestRefused
    | Started
    | RoleOutput
    | RoleEnded
    | Suspended
    | RunEvent
    | Notice
    | CleanedUp
    | FilePart
    | Alive
)
Message = ToAgent | FromAgent

_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in typing.get_args(Message)}
_HINTS = {kind: typing.get_type_hints(kind) for kind in _KINDS.values()}


def encode(message: Message) -> bytes:
    """Raises ValueError for more bytes than a message may carry."""
    line: dict[str, Any] = {"kind": type(message).__name__.lower()}
    data = b""
    for each in dataclasses.fields(message):
        value = getattr(message, each.name)
        if each.name == "data":
            data, line["data_bytes"] = value, len(value)
        else:
            line[each.name] = value
    encoded = json.dumps(line, allow_nan=False).encode() + b"\n" + data
    if len(data) > MAX_DATA_BYTES or len(encoded) - len(data) > MAX_LINE_BYTES:
        raise ValueError(f"{line['kind']} of {len(encoded)} bytes: at most {MAX_LINE_BYTES} and {MAX_DATA_BYTES} fit")
    return encoded


class Decoder:
    """Cuts a stream into messages. With `greeting`, skips and keeps all text before the first `hello`."""

    def __init__(self, greeting: bool = False) -> None:
        self.greeting = b""  # what came before `hello`
        self._skips = greeting
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes.

        Raises:
            StreamError: the stream holds something else, and cannot be read on.
        """
        self._rest += data
        while True:
            if self._skips:
                self._skip()
            end = self._rest.find(b"\n")
            if self._skips or end < 0:
                if len(self._rest) > MAX_LINE_BYTES:
                    raise StreamError(f"a line of more than {MAX_LINE_BYTES} bytes came")
                return
            line = _object(bytes(self._rest[:end]))
            size = line.pop("data_bytes", 0)
            if not isinstance(size, int) or not 0 <= size <= MAX_DATA_BYTES:
                raise StreamError(f"data_bytes is {size!r}, expected 0 to {MAX_DATA_BYTES}")
            if len(self._rest) < end + 1 + size:
                return
            payload = bytes(self._rest[end + 1 : end + 1 + size])
            del self._rest[: end + 1 + size]
            yield _message(line, payload)

    def _skip(self) -> None:
        """Drop complete lines before the one that begins with `hello`."""
        while not self._rest.startswith(_HELLO):
            end = self._rest.find(b"\n")
            if end < 0:
                return
            self.greeting += bytes(self._rest[: end + 1])
            del self._rest[: end + 1]
            if len(self.greeting) > _MAX_GREETING_BYTES:
                raise StreamError(f"more than {_MAX_GREETING_BYTES} bytes came that are no message of an agent")
        self._skips = False


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = value_in(line)
    except ValueError as error:
        raise StreamError(f"{_shown(line)} came, which is no message") from error
    if not isinstance(value, dict):
        raise StreamError(f"{_shown(line)} came, which is no message")
    return value


def _message(line: dict[str, Any], payload: bytes) -> Message:
    kind = _KINDS.get(str(line.pop("kind", None)))
    if kind is None:
        raise StreamError(f"a message of an unknown kind came: {_shown(line)}")
    hints = _HINTS[kind]
    if "data" in hints:
        line["data"] = payload
    if line.keys() != hints.keys():
        raise StreamError(f"{kind.__name__}: got the fields {', '.join(line)}, expected {', '.join(hints)}")
    for name, hint in hints.items():
        if isinstance(line[name], list):
            line[name] = tuple(line[name])
        if not _fits(line[name], hint):
            raise StreamError(f"{kind.__name__}.{name} is {_shown(line[name])}, expected {hint}")
    message: Message = kind(**line)
    return message


def _fits(value: object, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is hint


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
