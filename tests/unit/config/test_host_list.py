"""Hosts from `-H`, from host files, and from --include and --exclude: the common forms, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamix_ps.config.host_list import chosen_hosts, parse_list, read_hostfile
from dynamix_ps.config.schema import Host
from dynamix_ps.errors import ConfigError, UsageError

OPEN_MPI = """\
# a comment
node-1 slots=2 max_slots=4   # another

node-2
10.0.0.3 max-slots=8 slots=8
"""
MPICH = "node-1:2\n[fd00::1]:3\nfd00::2\n"
DEEPSPEED = "worker1 slots=4\nworker2 slots=4\n"
BATCH_SYSTEM = "n1\nn1\nn2\nn1\n"


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        (OPEN_MPI, {"node-1": 2, "node-2": 1, "10.0.0.3": 8}),
        (MPICH, {"node-1": 2, "fd00::1": 3, "fd00::2": 1}),
        (DEEPSPEED, {"worker1": 4, "worker2": 4}),
        (BATCH_SYSTEM, {"n1": 3, "n2": 1}),
    ],
)
def test_host_files_as_people_have_them(tmp_path: Path, text: str, slots: dict[str, int]) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    found = read_hostfile(file)
    assert found == slots
    assert list(found) == list(slots), "the order of the file"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a slots=2\na slots=2\n", ":2: a: is also on line 1; write the host once"),
        ("a\na slots=2\n", ":2: a: is also on line 1"),
        ("a slots=two\n", ":1: a: got 'two' slots, expected a whole number from 0 to 1024"),
        ("a slots=9999\n", ":1: a: got '9999' slots"),
        ("a slots=2 user=me\n", ":1: a: got 'user=me', expected slots=N or max_slots=N, each once"),
        ("a slots=2 slots=2\n", ":1: a: got 'slots=2'"),
        ("\na 2\n", ":2: a: got '2', expected slots=N"),
        ("a slots=4 max_slots=2\n", ":1: a: slots=4 is above max_slots=2"),
        ("me@a slots=2\n", ":1: me@a: names a user; write the user into ~/.ssh/config"),
        ("-oProxyCommand=x slots=1\n", ":1: -oProxyCommand=x: is no name or address of a host"),
        ("# nothing\n", ":1: names no host; expected a line per host"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_hostfile(file)
    assert str(caught.value).startswith(f"{file}{error}")


def test_all_wrong_lines_are_told_at_once_and_a_missing_file_too(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=x\nb\nc slots=y\n")
    with pytest.raises(ConfigError) as caught:
        read_hostfile(file)
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["1", "3"]
    with pytest.raises(ConfigError, match="no such file"):
        read_hostfile(tmp_path / "none")


def test_the_list_of_the_command_line() -> None:
    assert parse_list("a:2,b:1, c") == {"a": 2, "b": 1, "c": 1}
    assert parse_list("[fd00::1]:2") == {"fd00::1": 2}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a:b", r"-H: 'a:b': got 'b' slots, expected a whole number from 0 to 1024; expected hosts with slots"),
        ("a,a", r"-H: 'a': the host is named before"),
        ("", r"-H: '': is no name or address of a host"),
        ("a,,b", r"-H: '': is no name"),
        ("fd00::1", r"-H: 'fd00::1': got ':1' slots"),
        ("me@a", r"-H: 'me@a': names a user"),
    ],
)
def test_a_wrong_list_is_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_list(text)


KNOWN = {"a": Host(address="10.0.0.1", slots=4, speed=2.0), "b": Host(devices=(4, 6))}


def test_the_command_line_replaces_hosts_and_slots_and_keeps_what_the_file_knows(tmp_path: Path) -> None:
    assert chosen_hosts(KNOWN, None, None, None, None) == KNOWN
    assert chosen_hosts(KNOWN, "c:3,a:1", None, None, None) == {
        "c": Host(slots=3),
        "a": Host(address="10.0.0.1", slots=1, speed=2.0),
    }
    file = tmp_path / "hosts"
    file.write_text("b slots=1\n")
    assert chosen_hosts(KNOWN, None, file, None, None) == {"b": Host(devices=(4, 6), slots=1)}


def test_a_part_of_the_hosts_as_deepspeed_takes_it() -> None:
    def chosen(include: str | None = None, exclude: str | None = None) -> dict[str, tuple[int, tuple[int, ...] | None]]:
        return {
            name: (host.room, host.devices) for name, host in chosen_hosts(KNOWN, None, None, include, exclude).items()
        }

    assert chosen(include="b") == {"b": (2, (4, 6))}
    assert chosen(include="b:6@a:0,3") == {"a": (2, (0, 3)), "b": (1, (6,))}
    assert chosen(exclude="a") == {"b": (2, (4, 6))}
    assert chosen(exclude="a:1,2@b:4") == {"a": (2, (0, 3)), "b": (1, (6,))}
    assert chosen(exclude="b:4,6") == {"a": (4, None)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("a", "f", None, None), "-H and --hostfile both name the hosts"),
        ((None, None, "a", "b"), "--include and --exclude cannot be used together"),
        ((None, None, "c", None), "--include: 'c': is none of the hosts, which are a, b; expected hosts"),
        ((None, None, "b:5", None), "--include: 'b:5': has no slot '5', only 4, 6"),
        ((None, None, "b:", None), "--include: 'b:': has no slot '', only 4, 6"),
        ((None, None, None, "b:4,4"), "--exclude: 'b:4,4': names slot 4 twice"),
        ((None, None, None, "a@a"), "--exclude: 'a': the host is named before"),
        ((None, None, None, "a@b"), "--exclude: a@b: leaves no host; there are a, b"),
    ],
)
def test_a_wrong_choice_is_refused(options: tuple[str | None, ...], error: str) -> None:
    with pytest.raises(UsageError, match=f"^{error}"):
        chosen_hosts(KNOWN, *options)


def test_a_choice_needs_hosts() -> None:
    with pytest.raises(UsageError, match="--include: 'a': is none of the hosts, which are not named anywhere"):
        chosen_hosts({}, None, None, "a", None)
