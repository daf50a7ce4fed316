"""Whether the hosts of a job fit together, by their answers. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dynamix_ps.config.role_hosts import hosts_of, role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.host.code_files import script_of
from dynamix_ps.launch.host.host_facts import BYTEPS_SOURCES
from dynamix_ps.launch.host.reach import FREE_PORT
from dynamix_ps.launch.preflight.check import Check, Status
from dynamix_ps.launch.preflight.inspection import HostReport, Way

_CLOCK_WARNING_S, _CLOCK_BLOCKER_S = 1.0, 60.0
_WORKER_BYTES = 512 << 20  # a training process with torch and little else
_SLOW_LINK = 1 / 3  # of the median
_MOST_NAMED = 3
_ONE_VERSION = "install one version on all hosts"
_SEE_TO_IT = "see to it that it is the same on all hosts"


@dataclass(frozen=True, slots=True)
class Expected:
    """Versions and files of the launcher, with which the hosts must agree."""

    package: str  # digest of its files of this package
    code: Mapping[str, str] | None  # digest of each Python file of the job; None: it is sent there before the run
    code_problem: str = ""  # why it is not compared


def host_checks(report: HostReport, config: Config, expected: Expected) -> tuple[Check, ...]:
    """The problems, blockers first; empty if there are none."""
    found = [
        *(_blocker(host, reason) for host, reason in report.silent.items()),
        *_own_problems(report, expected),
        *_package(report, expected),
        *_versions(report, config),
        *_code(report, config, expected),
        *_ways(report.ways),
        *_slow_links(report.ways),
        *_clocks(report),
        *_memory(report, config),
        *_gpus(report, config),
    ]
    return tuple(sorted(found, key=lambda check: check.status != "blocker"))


def _blocker(host: str, detail: str, fix: str = "") -> Check:
    return Check(f"host {host}", "blocker", detail, fix)


def _warning(host: str, detail: str, fix: str = "") -> Check:
    return Check(f"host {host}", "warning", detail, fix)


def _own_problems(report: HostReport, expected: Expected) -> Iterator[Check]:
    for host, answer in report.answers.items():
        if answer.facts.problem:
            yield _blocker(host, answer.facts.problem)
        if answer.facts.cwd_problem and expected.code is not None:
            fix = "have the job's files under the same path on all hosts, or set sync: rsync"
            yield _blocker(host, answer.facts.cwd_problem, fix)


def _package(report: HostReport, expected: Expected) -> Iterator[Check]:
    for host, answer in report.answers.items():
        if answer.facts.package != expected.package:
            detail = f"its files of dynamix-ps are {answer.facts.package[:8]}, those of the launcher "
            yield _blocker(host, f"{detail}{expected.package[:8]}", _ONE_VERSION)


def _versions(report: HostReport, config: Config) -> Iterator[Check]:
    """Builds for other devices (`2.9.1+cpu`) and patches of Python may differ."""
    told = {host: answer.facts.versions for host, answer in report.answers.items()}
    workers = [host for host in told if host in role_hosts(config.cluster).workers]
    python = {host: ".".join(known["python"].split(".")[:2]) for host, known in told.items()}
    yield from _unequal("Python", python, _ONE_VERSION)
    for package, hosts in (("numpy", list(told)), ("torch", workers), ("mxnet", workers)):
        public = {host: told[host].get(package, "").partition("+")[0] for host in hosts}
        yield from _unequal(package, public, _ONE_VERSION)
    if config.data_plane.has_servers:
        build = "on each host, run: dynamix build-byteps"
        byteps = {host: known.get("byteps", "") for host, known in told.items()}
        yield from (_blocker(host, "BytePS is not installed", build) for host, version in byteps.items() if not version)
        there = {host: version for host, version in byteps.items() if version}
        unequal = list(_unequal("BytePS", there, build))
        sources = {host: told[host].get(BYTEPS_SOURCES, "")[:8] for host in there}
        yield from unequal or _unequal("BytePS built from sources", sources, build)


def _unequal(what: str, values: Mapping[str, str], fix: str) -> Iterator[Check]:
    usual, as_usual = _usual(values)
    for host, value in values.items():
        if value != usual:
            got = f"{what} {value}" if value else f"no {what}"
            yield _blocker(host, f"has {got}, expected {usual or 'none'} as on {_few(as_usual)}", fix)


def _usual(values: Mapping[str, str]) -> tuple[str, list[str]]:
    """(the most frequent value, of several the one of the first host; the hosts that have this value)"""
    if not values:
        return "", []
    usual = Counter(values.values()).most_common(1)[0][0]
    return usual, [host for host, value in values.items() if value == usual]


def _code(report: HostReport, config: Config, expected: Expected) -> Iterator[Check]:
    """A file that differs is a blocker, because training would not notice it. A missing file may not be needed."""
    if expected.code_problem and expected.code is not None:
        yield Check("code", "warning", f"it is not compared: {expected.code_problem}", _SEE_TO_IT)
    script, fix, code = script_of(config.command) or "", "copy it there, or set sync: rsync", expected.code or {}
    for host, answer in report.answers.items():
        facts = answer.facts
        if not code or facts.cwd_problem:
            continue
        if facts.code_problem:
            yield _warning(host, f"its code is not compared: {facts.code_problem}", _SEE_TO_IT)
            continue
        missing = [path for path in code if path not in facts.code]
        other = [path for path in code if facts.code.get(path, code[path]) != code[path]]
        if other:
            differs = "differs" if len(other) == 1 else "differ"
            yield _blocker(host, f"{_few(other)} {differs} from what the launcher has", fix)
        needed = [path for path in missing if script == path or script.endswith(f"/{path}")]
        if missing:
            judged = _blocker if needed else _warning
            yield judged(host, f"has no {_few(needed or missing)}, which the launcher has", fix)


def _ways(ways: Collection[Way]) -> Iterator[Check]:
    for way in ways:
        if way.problem:
            where = f"{way.target} at {way.address} port {way.port}"
            fix = f"open {way.port_key} to it" if way.port_key != FREE_PORT else "open all ports between the hosts"
            yield _blocker(way.source, f"does not reach {where} ({way.problem})", fix)


def _slow_links(ways: Collection[Way]) -> Iterator[Check]:
    """Hosts whose best link is slow beside the best links of the others; if none, single slow links."""
    best: dict[str, float] = {}
    for way in ways:
        for host in (way.source, way.target) if way.bytes_per_s else ():
            best[host] = max(best.get(host, 0.0), way.bytes_per_s)
    usual = statistics.median(best.values()) if best else 0.0
    slow = [host for host in best if best[host] < usual * _SLOW_LINK]
    fix = "see its cable, its switch and what else uses them"
    for host in slow:
        detail = f"its links take {megabytes(best[host])} at the most, those of other hosts {megabytes(usual)}"
        yield _warning(host, detail, fix)
    rates = {way: way.bytes_per_s for way in ways if way.bytes_per_s and not {way.source, way.target} & {*slow}}
    usual = statistics.median(rates.values()) if rates else 0.0
    for way, rate in rates.items():
        if rate < usual * _SLOW_LINK:
            detail = f"its link to {way.target} takes {megabytes(rate)}, half of all links {megabytes(usual)} or more"
            yield _warning(way.source, detail, fix)


def _clocks(report: HostReport) -> Iterator[Check]:
    for host, answer in report.answers.items():
        off_s = abs(answer.clock_ahead_s) - answer.clock_error_s
        if off_s > _CLOCK_WARNING_S:
            status: Status = "blocker" if off_s > _CLOCK_BLOCKER_S else "warning"
            way = "ahead of" if answer.clock_ahead_s > 0 else "behind"
            detail = f"its clock is {off_s:.1f} s {way} the launcher's, by which times of records are off"
            yield Check(f"host {host}", status, detail, "set both by NTP, such as: timedatectl set-ntp true")


def _memory(report: HostReport, config: Config) -> Iterator[Check]:
    workers = Counter(role_hosts(config.cluster).workers)
    for host, answer in report.answers.items():
        free = answer.facts.memory_bytes
        if free < workers[host] * _WORKER_BYTES:
            detail = f"{free >> 20} MB of memory are free, for {workers[host]} worker(s)"
            yield _warning(host, detail, "end what uses the rest, or give it fewer slots")


def _gpus(report: HostReport, config: Config) -> Iterator[Check]:
    for host, answer in report.answers.items():
        named, there = hosts_of(config.cluster)[host].devices, len(answer.facts.gpus)
        if named and max(named) >= there:
            key, fix = f"cluster.hosts.{host}.devices", "correct it, or see what nvidia-smi says there"
            judged = _blocker if there else _warning  # GPUs of another vendor are not seen
            yield judged(host, f"{key} names GPU {max(named)}, and it has {there} GPUs of NVIDIA", fix)


def megabytes(bytes_per_s: float) -> str:
    """A rate in words."""
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 1e7 else f"{bytes_per_s / 1e6:.1f} MB/s"


def _few(names: Collection[str]) -> str:
    """The first names, and how many more there are."""
    first, more = list(names)[:_MOST_NAMED], len(names) - _MOST_NAMED
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
