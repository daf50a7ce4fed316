"""Messages between launcher and agents: what is sent comes out, however it is cut; nothing else is taken for one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.launch.messages.agent_messages import (
    MAX_DATA_BYTES,
    Alive,
    Decoder,
    FilePart,
    Hello,
    Message,
    Prepare,
    RoleEnded,
    RoleOutput,
    StreamError,
    encode,
)

TEXT = st.text(max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=100),
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    tuple[int, ...]: st.lists(st.integers(0, 65535), max_size=3).map(tuple),
    tuple[float, ...]: st.lists(st.floats(0, 1), max_size=3).map(tuple),
    dict[str, str]: st.dictionaries(TEXT, TEXT, max_size=3),
    dict[str, int]: st.dictionaries(TEXT, st.integers(0, 65535), max_size=3),
}


def messages() -> st.SearchStrategy[Message]:
    return st.one_of([
        st.builds(kind, **{name: VALUES[hint] for name, hint in get_type_hints(kind).items()})
        for kind in get_args(Message)
    ])  # fmt: skip


@given(st.lists(messages(), max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_what_is_sent_comes_out_however_the_stream_is_cut(sent: list[Message], sizes: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    decoder, received, at, turn = Decoder(), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert received == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_an_error(data: bytes) -> None:
    with contextlib.suppress(StreamError):
        assert not list(Decoder().feed(data + b"\n")) or b"kind" in data


HELLO = Hello(1, "1.0", "3.11", "node", 7)


def test_what_a_login_shell_prints_first_is_skipped() -> None:
    decoder = Decoder(greeting=True)
    assert list(decoder.feed(b"Welcome to node!\n\x1b[0m{}\n" + encode(HELLO)[:5])) == []
    assert list(decoder.feed(encode(HELLO)[5:] + encode(Alive()))) == [HELLO, Alive()]
    assert decoder.greeting == b"Welcome to node!\n\x1b[0m{}\n"
    with pytest.raises(StreamError, match="'Welcome"):
        list(decoder.feed(b"Welcome again\n"))


@pytest.mark.parametrize("greeting", [False, True])
def test_a_flood_is_refused(greeting: bool) -> None:
    with pytest.raises(StreamError):
        for _ in range(100):
            list(Decoder(greeting).feed(b"x" * (8 << 20)))
    if greeting:
        with pytest.raises(StreamError, match="no message of an agent"):
            list(Decoder(greeting).feed(b"x\n" * (1 << 16)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "shell"}, "unknown kind"),
        ({"kind": None}, "unknown kind"),
        ({"exit_code": "0"}, r"RoleEnded.exit_code is '0'"),
        ({"exit_code": True}, r"RoleEnded.exit_code is True"),
        ({"ago_s": None}, r"RoleEnded.ago_s is None"),
        ({"role": ["a"]}, r"RoleEnded.role is \('a',\)"),
        ({"more": 1}, r"got the fields role, exit_code, ago_s, more, expected role, exit_code, ago_s"),
        ({"data_bytes": -1}, "data_bytes is -1"),
        ({"data_bytes": MAX_DATA_BYTES + 1}, "data_bytes is"),
    ],
)
def test_a_message_with_a_wrong_field_is_refused(change: dict[str, Any], error: str) -> None:
    line = json.loads(encode(RoleEnded("worker-0", 0, 0.5))) | change
    with pytest.raises(StreamError, match=error):
        list(Decoder().feed(json.dumps(line).encode() + b"\n"))


def test_too_much_does_not_fit_into_one() -> None:
    with pytest.raises(ValueError, match="output of"):
        encode(RoleOutput("worker-0", False, b"x" * (MAX_DATA_BYTES + 1)))


def test_secrets_and_contents_are_in_no_text_of_a_message() -> None:
    prepare = Prepare("id", "a", (), "/", "", "", "", "the secret")
    assert "the secret" not in f"{prepare!r} {prepare}"
    assert "xyz" not in repr(FilePart("logs/a.log", 0, -1, b"xyz"))
    assert {each.name for each in dataclasses.fields(Prepare)} >= {"token"}
