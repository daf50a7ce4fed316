"""What is said about hosts that do not fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.host.host_facts import BYTEPS_SOURCES
from dynamix_ps.launch.messages.agent_messages import Inspected
from dynamix_ps.launch.preflight.host_checks import Expected, host_checks
from dynamix_ps.launch.preflight.host_table import host_lines, way_lines
from dynamix_ps.launch.preflight.inspection import HostAnswer, HostReport, Way

CODE = {"train.py": "1111", "lib/model.py": "2222", "tools.py": "3333"}
VERSIONS = {"python": "3.11.2", "torch": "2.9.1+cpu", "mxnet": "", "numpy": "2.1.0", "byteps": "0.2.5"}
FACTS = Inspected(
    address="10.0.0.1",
    ports={"": 41000},
    problem="",
    cwd_problem="",
    versions={**VERSIONS, BYTEPS_SOURCES: "aaaa"},
    package="0123456789abcdef",
    code=CODE,
    code_problem="",
    memory_bytes=8_000_000_000,
    gpus=("A", "A"),
    clock_s=0.0,
    took_s=0.0,
)
EXPECTED = Expected(FACTS.package, CODE)


def config(comm: str = "byteps", **hosts: Mapping[str, Any]) -> Config:
    cluster = {"hosts": {"a": {}, "b": {}, "c": {}, **hosts}, "workers": ({}, {}, {})}
    return resolved(Config.model_validate({"cluster": cluster, "comm": comm, "command": ("python", "train.py")}))


def answer(ahead_s: float = 0.0, error_s: float = 0.0, **changes: Any) -> HostAnswer:
    return HostAnswer(replace(FACTS, **changes), ahead_s, error_s)


def found(
    b: HostAnswer | None = None,
    c: HostAnswer | None = None,
    ways: tuple[Way, ...] = (),
    job: Config | None = None,
    expected: Expected = EXPECTED,
) -> list[tuple[str, str]]:
    """(status, text) of all checks of three hosts, of which `a` is fine."""
    report = HostReport({"a": answer(), "b": b or answer(), "c": c or answer()}, {}, ways)
    return [(check.status, str(check)) for check in host_checks(report, job or config(), expected)]


def versions(**changes: str) -> HostAnswer:
    return answer(versions={**FACTS.versions, **changes})


def test_of_hosts_that_are_alike_nothing_is_said() -> None:
    assert found() == []


@pytest.mark.parametrize(
    "b",
    [
        versions(python="3.11.9"),
        versions(torch="2.9.1+cu128"),
        versions(protobuf="9"),
        answer(code={**CODE, "mine.py": "4444"}),
        answer(ahead_s=3.0, error_s=2.5),
    ],
    ids=["patch-of-python", "torch-for-gpus", "another-package", "more-code", "perhaps-the-clock"],
)
def test_what_may_differ(b: HostAnswer) -> None:
    assert found(b) == []


BUILD = "on each host, run: dynamix build-byteps"
BLOCKERS: dict[str, tuple[HostAnswer, str]] = {
    "address": (answer(problem="cluster.hosts.b: it has no route", address=""), "cluster.hosts.b: it has no route"),
    "folder": (
        answer(cwd_problem="has no folder /job (gone)", code={}),
        "has no folder /job (gone); have the job's files under the same path on all hosts, or set sync: rsync",
    ),
    "package": (
        answer(package="fedcba9876543210"),
        "its files of dynamix-ps are fedcba98, those of the launcher 01234567; install one version on all hosts",
    ),
    "python": (
        versions(python="3.12.1"),
        "has Python 3.12, expected 3.11 as on a, c; install one version on all hosts",
    ),
    "torch": (versions(torch="2.8.0"), "has torch 2.8.0, expected 2.9.1 as on a, c; install one version on all hosts"),
    "numpy": (versions(numpy=""), "has no numpy, expected 2.1.0 as on a, c; install one version on all hosts"),
    "byteps": (versions(byteps="0.2.4"), f"has BytePS 0.2.4, expected 0.2.5 as on a, c; {BUILD}"),
    "no-byteps": (versions(byteps=""), f"BytePS is not installed; {BUILD}"),
    "byteps-sources": (
        versions(**{BYTEPS_SOURCES: "bbbb"}),
        f"has BytePS built from sources bbbb, expected aaaa as on a, c; {BUILD}",
    ),
    "other-code": (
        answer(code={**CODE, "train.py": "9", "tools.py": "9"}),
        "train.py, tools.py differ from what the launcher has; copy it there, or set sync: rsync",
    ),
    "no-script": (
        answer(code={"tools.py": "3333"}),
        "has no train.py, which the launcher has; copy it there, or set sync: rsync",
    ),
    "clock": (
        answer(ahead_s=-100.0, error_s=0.1),
        "its clock is 99.9 s behind the launcher's, by which times of records are off; "
        "set both by NTP, such as: timedatectl set-ntp true",
    ),
}


@pytest.mark.parametrize("what", list(BLOCKERS))
def test_what_must_not_be(what: str) -> None:
    b, text = BLOCKERS[what]
    assert found(b) == [("blocker", f"host b: {text}")]


def test_what_is_only_told() -> None:
    fewer = {path: digest for path, digest in CODE.items() if path != "tools.py"}
    assert found(answer(code=fewer)) == [
        ("warning", "host b: has no tools.py, which the launcher has; copy it there, or set sync: rsync")
    ]
    assert found(answer(ahead_s=2.5, error_s=0.5))[0][0] == "warning"
    assert found(answer(code={}, code_problem="/ has more than 5000 files"))[0] == (
        "warning",
        "host b: its code is not compared: / has more than 5000 files; see to it that it is the same on all hosts",
    )
    assert found(expected=Expected(FACTS.package, {}, "/ has more than 5000 files")) == [
        ("warning", "code: it is not compared: / has more than 5000 files; see to it that it is the same on all hosts")
    ]
    assert found(answer(memory_bytes=100 << 20)) == [
        (
            "warning",
            "host b: 100 MB of memory are free, for 1 worker(s); end what uses the rest, or give it fewer slots",
        )
    ]


def test_blockers_come_first_and_every_host_is_named() -> None:
    checks = found(answer(ahead_s=2.0), versions(torch="2.8.0"))
    assert [(status, text.partition(":")[0]) for status, text in checks] == [
        ("blocker", "host c"),
        ("warning", "host b"),
    ]


def test_a_host_that_does_not_answer_is_told_with_its_reason() -> None:
    report = HostReport({"a": answer()}, {"b": "ssh to b ended; start sshd there"}, ())
    assert [str(check) for check in host_checks(report, config(), EXPECTED)] == [
        "host b: ssh to b ended; start sshd there"
    ]


def test_code_that_is_sent_before_the_run_may_be_missing() -> None:
    assert found(answer(cwd_problem="has no folder /job", code={}), expected=Expected(FACTS.package, None)) == []


def test_what_only_servers_or_nobody_needs() -> None:
    assert found(versions(byteps="", **{BYTEPS_SOURCES: ""}), job=config("gloo")) == []
    servers_only = config(c={"slots": 0}, a={"slots": 2})
    assert found(c=versions(torch=""), job=servers_only) == []


def test_a_gpu_that_is_not_there() -> None:
    text = "host b: cluster.hosts.b.devices names GPU 2, and it has 2 GPUs of NVIDIA; "
    advice = "correct it, or see what nvidia-smi says there"
    assert found(job=config(b={"devices": (1, 2)})) == [("blocker", text + advice)]
    assert found(answer(gpus=()), job=config(b={"devices": (0, 1)}))[0][0] == "warning"
    assert found(job=config(b={"devices": (0, 1)})) == []


def way(source: str, target: str, **changes: Any) -> Way:
    return Way(source, target, f"10.0.0.{target}", 41000, **{"port_key": "", **changes})


def test_a_closed_port_is_told_for_each_direction() -> None:
    closed = way("b", "c", problem="no answer within 3 s")
    fixed = replace(closed, port=9000, port_key="cluster.port")
    assert found(ways=(closed, way("c", "b"), fixed)) == [
        (
            "blocker",
            "host b: does not reach c at 10.0.0.c port 41000 (no answer within 3 s); open all ports between the hosts",
        ),
        ("blocker", "host b: does not reach c at 10.0.0.c port 9000 (no answer within 3 s); open cluster.port to it"),
    ]


def test_a_link_that_is_much_slower_than_the_others() -> None:
    rates = {"ab": 1e9, "ba": 1e9, "ac": 9e8, "ca": 1.1e9, "bc": 9e6, "cb": 8e8}
    ways = tuple(way(*pair, bytes_per_s=rate) for pair, rate in rates.items())
    assert found(ways=ways) == [
        (
            "warning",
            "host b: its link to c takes 9.0 MB/s, half of all links 950 MB/s or more; "
            "see its cable, its switch and what else uses them",
        )
    ]


def test_a_host_whose_links_are_all_slow_is_named_once() -> None:
    rates = {"ab": 1e9, "ba": 9e8, "ac": 9e6, "ca": 8e6, "bc": 9e6, "cb": 9.5e6}
    ways = tuple(way(*pair, bytes_per_s=rate) for pair, rate in rates.items())
    assert found(ways=ways) == [
        (
            "warning",
            "host c: its links take 9.5 MB/s at the most, those of other hosts 1000 MB/s; "
            "see its cable, its switch and what else uses them",
        )
    ]


def test_the_tables() -> None:
    ways = (way("a", "b", bytes_per_s=2e8, round_trip_s=0.0005), way("b", "a", problem="Connection refused"))
    report = HostReport({"a": answer(), "b": answer(1.5, gpus=(), code={})}, {"c": "gone"}, ways)
    head, a, b, c = host_lines(report)
    assert head.split() == ["host", "address", "python", "torch", "BytePS", "code", "clock", "free", "memory", "GPUs"]
    assert a.split()[:5] == ["a", "10.0.0.1", "3.11.2", "2.9.1+cpu", "0.2.5"]
    assert a.endswith("(3 files)  +0.00 s  8.0 GB       2 x A")
    assert "none" in b
    assert "+1.50 s" in b
    assert c.split()[:3] == ["c", "not", "known"]
    assert [line.split("  ")[0] for line in way_lines(report)] == ["from \\ to", "a", "b"]
    assert "200 MB/s, 0.50 ms" in "\n".join(way_lines(report))
    assert "Connection refused" in "\n".join(way_lines(report))


def test_of_many_hosts_the_slowest_links_are_shown() -> None:
    names = [f"h{number}" for number in range(9)]
    ways = tuple(
        way(source, target, bytes_per_s=1e9 if "h7" not in (source, target) else 1e6)
        for source in names for target in names if source != target
    )  # fmt: skip
    lines = list(way_lines(HostReport(dict.fromkeys(names, answer()), {}, ways)))
    assert len(lines) == 9
    assert all("h7" in line for line in lines[1:])
