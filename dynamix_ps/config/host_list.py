"""Hosts as other launchers take them: `-H a:2,b:1`, host files, --include and --exclude."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from dynamix_ps.config.host_rules import HOST_NAME
from dynamix_ps.config.schema import Host
from dynamix_ps.config.validate import read_text
from dynamix_ps.errors import ConfigError, UsageError

Hosts = Mapping[str, Host]

_MOST_SLOTS = 1024
_SPLIT = re.compile(r"(?:\[(?P<inner>[^\]]*)\]|(?P<plain>[^:\[\]]*))(?::(?P<rest>.*))?")  # [fd00::1]:2, or a:2
_ATTRIBUTE = re.compile(r"(?P<key>[A-Za-z_-]+)=(?P<value>.*)")


class _WrongError(Exception):
    """A part of a list of hosts; the text says what is wrong with it."""


def chosen_hosts(
    known: Hosts, listed: str | None, hostfile: str | os.PathLike[str] | None, include: str | None, exclude: str | None
) -> dict[str, Host]:
    """The hosts of a job whose cluster file names `known`, as the options of the command line change them.

    A host that the file knows keeps its address, devices and speed.

    Args:
        listed: `-H`, as `a:2,b:1`.
        hostfile: path of a file as MPI and DeepSpeed read it.
        include: the only hosts, or slots of them, that are used, as `a@b:0,1`.
        exclude: those that are not used.

    Raises:
        UsageError: an option is wrong, or there is no host left.
        ConfigError: the host file is; one line per error.
    """
    if listed is not None and hostfile is not None:
        raise UsageError("-H and --hostfile both name the hosts; give one of them")
    if include is not None and exclude is not None:
        raise UsageError("--include and --exclude cannot be used together; --include alone says what is used")
    hosts = dict(known)
    slots = parse_list(listed) if listed is not None else read_hostfile(hostfile) if hostfile is not None else None
    if slots is not None:
        hosts = {name: known.get(name, Host()).model_copy(update={"slots": count}) for name, count in slots.items()}
    if include is not None:
        return _included(hosts, include)
    return hosts if exclude is None else _excluded(hosts, exclude)


def parse_list(text: str) -> dict[str, int]:
    """Slots by host of `a:2,b`, where `b` has one. Raises UsageError."""
    slots: dict[str, int] = {}
    for part in text.split(","):
        try:
            name, rest = _name_and_rest(part.strip())
            if name in slots:
                raise _WrongError("the host is named before")
            slots[name] = 1 if rest is None else _count(rest)
        except _WrongError as error:
            raise UsageError(f"-H: {part.strip()!r}: {error}; expected hosts with slots, such as a:2,b:1") from None
    return slots


def as_list(hosts: Hosts) -> str:
    """`a:2,b:1`, as `-H` takes it."""
    return ",".join(f"[{name}]:{host.room}" if ":" in name else f"{name}:{host.room}" for name, host in hosts.items())


def read_hostfile(path: str | os.PathLike[str]) -> dict[str, int]:
    """Slots by host of a file with a host per line: `a slots=2`, `a:2`, or `a`, which is one slot.

    A bare name may be repeated, once per slot, as batch systems write it. `#` begins a comment. `max_slots` of Open MPI
    is checked, and has no further effect: no host gets more workers than it has slots.

    Raises:
        ConfigError: it cannot be read, or one line per error in it.
    """
    slots: dict[str, int] = {}
    bare: set[str] = set()
    first_line: dict[str, int] = {}
    problems = []
    for number, line in enumerate(read_text(os.fspath(path)).splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            name, count = _host_line(words)
            if name in slots and not (count is None and name in bare):
                raise _WrongError(f"is also on line {first_line[name]}; write the host once, with all its slots")
        except _WrongError as error:
            problems.append(f"{os.fspath(path)}:{number}: {words[0]}: {error}")
            continue
        if count is None:
            bare.add(name)
        first_line.setdefault(name, number)
        slots[name] = slots.get(name, 0) + (1 if count is None else count)
    if not slots and not problems:
        problems.append(f"{os.fspath(path)}:1: names no host; expected a line per host, such as: node-1 slots=2")
    if problems:
        raise ConfigError("\n".join(problems))
    return slots


def _host_line(words: list[str]) -> tuple[str, int | None]:
    """(host, its slots; None where the line does not say)."""
    bare_address = words[0].count(":") > 1 and not words[0].startswith("[")  # IPv6, which has no room for `:N`
    name, rest = (_checked(words[0]), None) if bare_address else _name_and_rest(words[0])
    count = None if rest is None else _count(rest)
    most: int | None = None
    for word in words[1:]:
        found = _ATTRIBUTE.fullmatch(word)
        key = found.group("key").replace("-", "_") if found else ""
        if found and key == "slots" and count is None:
            count = _count(found.group("value"))
        elif found and key == "max_slots" and most is None:
            most = _count(found.group("value"))
        else:
            raise _WrongError(f"got {word!r}, expected slots=N or max_slots=N, each once")
    if most is not None and (1 if count is None else count) > most:
        raise _WrongError(f"slots={1 if count is None else count} is above max_slots={most}")
    return name, count


def _name_and_rest(text: str) -> tuple[str, str | None]:
    """`a:2` is a and 2, `[fd00::1]:2` is fd00::1 and 2."""
    found = _SPLIT.fullmatch(text)
    if found is None:
        raise _WrongError("is no host")
    inner = found.group("inner")
    return _checked(found.group("plain") if inner is None else inner), found.group("rest")


def _checked(name: str) -> str:
    if "@" in name:
        raise _WrongError("names a user; write the user into ~/.ssh/config")
    if not HOST_NAME.fullmatch(name):
        raise _WrongError("is no name or address of a host")
    return name


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _MOST_SLOTS):
        raise _WrongError(f"got {text!r} slots, expected a whole number from 0 to {_MOST_SLOTS}")
    return int(text)


def _included(hosts: Hosts, text: str) -> dict[str, Host]:
    asked = _selection(hosts, text, "--include")
    kept = {name: host for name, host in hosts.items() if name in asked}
    return {name: _with_slots(host, asked[name]) if asked[name] else host for name, host in kept.items()}


def _excluded(hosts: Hosts, text: str) -> dict[str, Host]:
    asked = _selection(hosts, text, "--exclude")
    left = {}
    for name, host in hosts.items():
        kept = tuple(slot for slot in _slots(host) if slot not in asked.get(name, ()))
        if name not in asked:
            left[name] = host
        elif asked[name] and kept:
            left[name] = _with_slots(host, kept)
    if not left:
        raise UsageError(f"--exclude: {text}: leaves no host; there are {', '.join(hosts)}")
    return left


def _selection(hosts: Hosts, text: str, option: str) -> dict[str, tuple[int, ...]]:
    """`a@b:0,1` as the chosen slots of each host; an empty tuple means all of them."""
    asked: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        try:
            name, rest = _name_and_rest(part.strip())
            if name not in hosts:
                raise _WrongError(f"is none of the hosts, which are {', '.join(hosts) or 'not named anywhere'}")
            if name in asked:
                raise _WrongError("the host is named before")
            asked[name] = () if rest is None else tuple(_chosen_slots(hosts[name], rest))
        except _WrongError as error:
            example = "expected hosts, each with slots or without, such as a@b:0,1"
            raise UsageError(f"{option}: {part.strip()!r}: {error}; {example}") from None
    return asked


def _chosen_slots(host: Host, text: str) -> Iterator[int]:
    slots, seen = _slots(host), set()
    for word in text.split(","):
        slot = _count(word) if word else -1
        if slot not in slots:
            raise _WrongError(f"has no slot {word!r}, only {', '.join(map(str, slots)) or 'none'}")
        if slot in seen:
            raise _WrongError(f"names slot {slot} twice")
        seen.add(slot)
        yield slot


def _slots(host: Host) -> tuple[int, ...]:
    """The slots by number: a slot has the number of its device."""
    if host.devices is not None and host.slots in (None, len(host.devices)):
        return host.devices
    return tuple(range(host.room))


def _with_slots(host: Host, slots: tuple[int, ...]) -> Host:
    """The host with these slots alone."""
    return host.model_copy(update={"slots": len(slots), "devices": slots})
