"""Messages of the probe and its clients: one JSON line per request, one per reply. Pure; checks every value.

A request is `{"v": 1, "ask": "mine"}` for the connections of the asking process, or `"all"` for those of every
watched process of the asking user (for root, of all users). A request never names a process or user: the kernel tells
the probe who asks. Unknown numbers are null.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dynamix_ps.metrics.network.connection import Connection, SourceError

VERSION = 1
DEFAULT_SOCKET = "/run/dynamix/probe.sock"
MAX_REQUEST_BYTES = 256
MAX_REPLY_BYTES = 8 << 20  # about 25,000 connections

Ask = Literal["mine", "all"]

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
_ENDPOINT = re.compile(r"(\*|[0-9.]{7,15}:[0-9]{1,5}|\[[0-9a-f:.]{2,45}(%[0-9]{1,10})?\]:[0-9]{1,5})")
_NAME = re.compile(r"[\w.:\[\]-]{0,64}")
_MOST = 2.0**64  # kernel counters have 64 bits
_COUNTS = ("bytes_out", "bytes_in", "retransmits", "busy_s", "rtt_s", "unsent_bytes", "unread_bytes")


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """The owner of connections, as far as the probe knows it; empty is unknown."""

    pid: int
    name: str  # for example worker-0, server-1, scheduler
    run: str  # id of its run
    netns: str  # name of its network namespace; empty: the probe's


@dataclass(frozen=True, slots=True)
class ProbeSnapshot:
    """One reply: the state of the kernel at `taken_s` (unix time)."""

    host: str
    taken_s: float
    lost: int  # connections that the probe has left out so far
    cpu_s: float  # CPU time the probe process has used so far
    processes: tuple[WatchedProcess, ...]
    connections: tuple[Connection, ...]


def encode_request(ask: Ask) -> bytes:
    return _line({"v": VERSION, "ask": ask})


def decode_request(line: bytes) -> Ask:
    """Raises ValueError with the problem."""
    data = _parse(line)
    if data.get("v") != VERSION:
        raise ValueError(f"version {_shown(data.get('v'))} of the protocol; this probe speaks version {VERSION}")
    for ask in get_args(Ask):
        if data.get("ask") == ask:
            return ask  # type: ignore[no-any-return]
    raise ValueError(f"ask {_shown(data.get('ask'))}; expected one of {', '.join(get_args(Ask))}")


def encode_snapshot(snapshot: ProbeSnapshot) -> bytes:
    """Raises ValueError if it is too large for a reply."""
    data = {field.name: getattr(snapshot, field.name) for field in dataclasses.fields(ProbeSnapshot)}
    data["processes"] = [dataclasses.asdict(process) for process in snapshot.processes]
    data["connections"] = [_connection_to_json(connection) for connection in snapshot.connections]
    line = _line({"v": VERSION, **data})
    if len(line) > MAX_REPLY_BYTES:
        raise ValueError(f"{len(snapshot.connections)} connections do not fit into one reply")
    return line


def encode_error(problem: str) -> bytes:
    return _line({"v": VERSION, "error": problem})


def decode_reply(line: bytes) -> ProbeSnapshot:
    """Raises SourceError if it is no reply, has another version, or says that the probe cannot answer."""
    try:
        data = _parse(line)
        if data.get("v") != VERSION:
            found = _shown(data.get("v"))
            raise SourceError(
                f"speaks version {found} of the protocol, expected {VERSION}; run probe and job from one installation"
            )
        if "error" in data:
            raise SourceError(f"cannot answer: {_text(data, 'error', re.compile('.{1,500}'))}")
        return ProbeSnapshot(
            host=_text(data, "host", re.compile(r"[^\x00-\x1f\x7f]{0,255}")),
            taken_s=_number(data, "taken_s", known=True),
            lost=_integer(data, "lost"),
            cpu_s=_number(data, "cpu_s", known=True),
            processes=tuple(_process(item) for item in _list(data, "processes")),
            connections=tuple(_connection(item) for item in _list(data, "connections")),
        )
    except ValueError as error:
        raise SourceError(f"sent something that is not a reply: {error}") from error


def _connection_to_json(connection: Connection) -> dict[str, Any]:
    data = {name: getattr(connection, name) for name in Connection.__slots__}
    for name in _COUNTS:
        if not math.isfinite(data[name]):
            data[name] = None
    return data


def _connection(item: Any) -> Connection:
    data = _object(item, "a connection")
    closed = data.get("closed")
    if not isinstance(closed, bool):
        raise ValueError(f"closed is {_shown(closed)}")
    return Connection(
        id=_text(data, "id", re.compile(r"[ -~]{1,128}")),
        pid=_integer(data, "pid"),
        netns=_integer(data, "netns"),
        local=_text(data, "local", _ENDPOINT),
        remote=_text(data, "remote", _ENDPOINT),
        closed=closed,
        **{name: _number(data, name) for name in _COUNTS},
    )


def _process(item: Any) -> WatchedProcess:
    data = _object(item, "a process")
    name, run, netns = (_text(data, key, _NAME) for key in ("name", "run", "netns"))
    return WatchedProcess(_integer(data, "pid"), name, run, netns)


def _line(data: dict[str, Any]) -> bytes:
    return _ENCODER.encode(data).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return _object(json.loads(line.decode(), parse_constant=_refuse), "the line")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_shown(line[:60])} is not one JSON object") from error


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _object(item: Any, what: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError(f"{what} is {_shown(item)}")
    return item


def _list(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} is {_shown(value)}")
    return value


def _text(data: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = data.get(key)
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError(f"{key} is {_shown(value)}")
    return value


def _integer(data: dict[str, Any], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise ValueError(f"{key} is {_shown(value)}")
    return value


def _number(data: dict[str, Any], key: str, known: bool = False) -> float:
    """A number >= 0; null becomes NaN if the number may be unknown."""
    value = data.get(key)
    if value is None and key in data and not known:
        return math.nan
    # An integer may be too large for a float, and 1e999 is infinite.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
        raise ValueError(f"{key} is {_shown(value)}")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
