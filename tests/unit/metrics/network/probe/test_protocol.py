"""Requests and replies of the network probe: valid ones are transferred exactly, others refused with a reason."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.metrics.network.connection import Connection, SourceError
from dynamix_ps.metrics.network.probe import protocol as probe_protocol
from dynamix_ps.metrics.network.probe.protocol import (
    ProbeSnapshot,
    WatchedProcess,
    decode_reply,
    decode_request,
    encode_error,
    encode_request,
    encode_snapshot,
)

CONNECTION = Connection("7:1", 12, 4026531840, "10.0.0.1:80", "[fe80::1]:81", 1e12, 5.0, 3.0, 0.5, 1e-4, 0.0, 9.0)
UNKNOWN = Connection("8:2", 12, 0, "10.0.0.1:80", "*", 1.0, 2.0, math.nan, closed=True)
SNAPSHOT = ProbeSnapshot(
    "höst", 1.7e9, 4, 0.25, (WatchedProcess(12, "worker-0", "0badcafe", "a"),), (CONNECTION, UNKNOWN)
)

counts = st.floats(0, 1e18) | st.just(math.nan)
connections = st.builds(
    Connection,
    id=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20),
    pid=st.integers(0, 1 << 22),
    netns=st.integers(0, 1 << 32),
    local=st.sampled_from(["127.0.0.1:1", "[::1]:65535", "*"]),
    remote=st.sampled_from(["127.0.0.1:1", "[2001:db8::1]:2", "*"]),
    closed=st.booleans(),
    **{name: counts for name in ("bytes_out", "bytes_in", "retransmits", "busy_s", "rtt_s", "unsent_bytes")},
)


def as_dict(snapshot: ProbeSnapshot) -> str:
    return repr(dataclasses.asdict(snapshot))  # nan is not equal to itself, its text is


@given(st.lists(connections, max_size=5))
def test_a_snapshot_survives_the_way(some: list[Connection]) -> None:
    snapshot = dataclasses.replace(SNAPSHOT, connections=tuple(some))
    assert as_dict(decode_reply(encode_snapshot(snapshot))) == as_dict(snapshot)


def test_what_is_unknown_travels_as_null() -> None:
    line = encode_snapshot(SNAPSHOT)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"NaN" not in line
    assert json.loads(line)["connections"][1]["rtt_s"] is None


@pytest.mark.parametrize("ask", ["mine", "all"])
def test_a_request_survives_the_way(ask: Any) -> None:
    assert decode_request(encode_request(ask)) == ask


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "is not one JSON object"),
        (b"\xff\n", "is not one JSON object"),
        (b"[" * 200, "is not one JSON object"),
        (b"[1]", "is not one JSON object"),
        (b'{"v":2,"ask":"mine"}', "version 2 of the protocol; this probe speaks version 1"),
        (b'{"ask":"mine"}', "version None"),
        (b'{"v":1,"ask":"theirs"}', "ask 'theirs'; expected one of mine, all"),
        (b'{"v":1,"ask":["mine"]}', "ask"),
    ],
)
def test_a_wrong_request_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        decode_request(line)


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode_snapshot(SNAPSHOT)), **changes}).encode()


def with_connection(**changes: Any) -> bytes:
    connection = json.loads(encode_snapshot(SNAPSHOT))["connections"][0]
    return changed(connections=[{**connection, **changes}])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request", "b'HTTP/1.1 400 Bad Request' is not one JSON object"),
        (b"\x00" * 1000, "is not one JSON object"),
        (b"[" * 100_000, "is not one JSON object"),
        (b"null", "is not one JSON object"),
        (b'{"v":1,"taken_s":NaN}', "is not one JSON object"),
        (b'{"v":1}', "host is None"),
        (changed(v=2), "speaks version 2 of the protocol, expected 1"),
        (changed(taken_s=None), "taken_s is None"),
        (changed(taken_s="1"), "taken_s is '1'"),
        (changed(taken_s=True), "taken_s is True"),
        (changed(lost=-1), "lost is -1"),
        (changed(lost=1.5), "lost is 1.5"),
        (changed(connections={}), "connections is {}"),
        (changed(connections=[1]), "a connection is 1"),
        (changed(processes=None), "processes is None"),
        (changed(processes=[{"pid": 1, "name": "\x1b[2J", "run": "", "netns": ""}]), "name is"),
        (with_connection(bytes_out=-1), "bytes_out is -1"),
        (with_connection(bytes_out="many"), "bytes_out is 'many'"),
        (with_connection(rtt_s=10**400), "rtt_s is 1000"),
        (with_connection(pid=False), "pid is False"),
        (with_connection(netns=2**70), "netns is"),
        (with_connection(local="x" * 999), "local is 'xxx"),
        (with_connection(remote="\x1b]0;"), "remote is"),
        (with_connection(closed=0), "closed is 0"),
        (with_connection(id=""), "id is ''"),
        (with_connection(id=None), "id is None"),
    ],
)
def test_a_wrong_reply_is_refused_with_what_is_wrong(line: bytes, reason: str) -> None:
    with pytest.raises(SourceError) as caught:
        decode_reply(line)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_number_beyond_all_counters_is_refused() -> None:
    with pytest.raises(SourceError, match="bytes_in is inf"):
        decode_reply(with_connection(bytes_in=0).replace(b'"bytes_in": 0', b'"bytes_in": 1e999'))


def test_a_missing_count_is_not_an_unknown_one() -> None:
    data = json.loads(encode_snapshot(SNAPSHOT))
    del data["connections"][0]["rtt_s"]
    with pytest.raises(SourceError, match="rtt_s is None"):
        decode_reply(json.dumps(data).encode())


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_reply_does_anything_but_be_refused(line: bytes | str) -> None:
    with pytest.raises(SourceError):
        decode_reply(line if isinstance(line, bytes) else line.encode())


def test_an_error_reaches_the_asker() -> None:
    with pytest.raises(SourceError, match="cannot answer: it is late"):
        decode_reply(encode_error("it is late"))


def test_a_reply_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_protocol, "MAX_REPLY_BYTES", 100)
    with pytest.raises(ValueError, match="2 connections do not fit into one reply"):
        encode_snapshot(SNAPSHOT)
