"""`dynamix probe`: who sends to whom on this host, live. `dynamix probe serve`: the privileged process behind it."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynamix_ps.config import variables
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.cleanup.holdings import own_scratch_folders
from dynamix_ps.launch.host.network_probe import SOCKET_NAME
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.monitor import NO_PROBE
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.host_traffic import HostTraffic, PeerTraffic
from dynamix_ps.metrics.network.probe.process import ebpf_collector, run_probe
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET, ProbeSnapshot
from dynamix_ps.parts import load
from dynamix_ps.terminal import make_console, print_line

_SOCKET_HELP = f"Socket of the probe (default: ${variables.PROBE}, {DEFAULT_SOCKET}, or that of a run of yours)."


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--socket", "path", help=_SOCKET_HELP)
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True)
@click.option("--once", is_flag=True, help="Measure one interval, print it, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per interval instead of the table.")
@click.pass_context
def command(context: click.Context, path: str | None, interval_s: float, once: bool, as_json: bool) -> int:
    """Show who sends to whom on this host: MB/s, segments sent again, round trips, as the kernel counts them.

    Every row is one process and one other end. What goes out is `push` from a worker to a server and `pull` from a
    server to a worker. You see the processes of your own runs; root sees all. Ends with exit code 3 if no
    probe answers.
    """
    if context.invoked_subcommand is not None:
        return 0
    source = _find_probe(path)
    console = make_console()
    try:
        if as_json or once or not console.is_terminal:
            for view in _views(source, interval_s, once):
                _print_plain(console, view, as_json)
        else:
            _show_live(console, source, interval_s)
    except SourceError as error:
        raise EnvironmentNotReady(f"{error}; was it the probe of a run that has ended?") from error
    except KeyboardInterrupt:
        return 0  # Ctrl-C is how a user leaves it
    finally:
        source.close()
    return 0


@command.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--socket", "path", default=DEFAULT_SOCKET, show_default=True, help="Path of the socket to answer at.")
def serve(path: str) -> int:
    """Run the privileged probe of this host, until Ctrl-C or SIGTERM.

    Every `dynamix launch` of every user finds it at the default path. Needs root, or CAP_BPF and CAP_PERFMON.
    """
    return run_probe(path, ebpf_collector)


@command.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--image", required=True, help="Image with this package; see docker/Dockerfile.")
@click.option("--namespace", "namespaces", multiple=True, required=True, help="Namespace of jobs that use it.")
@click.option("--privileged", is_flag=True, help="A privileged container, where capabilities are not enough.")
@click.option("--pull-secret", help="Secret of the namespace dynamix-probe with the password of the registry.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="New folder for a file each, instead of the output.")
def manifest(
    image: str, namespaces: tuple[str, ...], privileged: bool, pull_secret: str | None, out: Path | None
) -> int:
    """Write manifests that run the probe on every node of a Kubernetes cluster, in the namespace dynamix-probe.

    They are for an administrator, once per cluster. Jobs of the named namespaces use it with `dynamix k8s --probe`. The
    probe is root with four capabilities; `--privileged` is for kernels before 5.11 and for runtimes that refuse bpf.

    \b
    Example:
      dynamix probe manifest --image registry/dynamix:1 --namespace research | kubectl apply -f -
    """
    probe_manifests = load("dynamix_ps.launch.targets.kubernetes.probe_pods:probe_manifests")
    load("dynamix_ps.cli.manifest_files:write_manifests")(
        probe_manifests(image, namespaces, privileged, pull_secret), out
    )
    return 0


def _find_probe(path: str | None) -> ProbeSource:
    """The first probe that answers. Raises EnvironmentNotReady when none does."""
    problems = []
    for candidate in [path] if path else _candidates():
        source = ProbeSource(candidate)
        try:
            source.ask("mine")
        except SourceError as error:
            problems.append(str(error))
        else:
            return source
    reasons = "\n".join(problems)
    raise EnvironmentNotReady(
        f"{reasons}\nno network probe answers; run one as root: sudo dynamix probe serve\n"
        "(dynamix launch starts its own where that is permitted; without one, each role only sees itself)"
    )


def _candidates() -> Iterator[str]:
    chosen = variables.get(variables.PROBE)
    if chosen and chosen != NO_PROBE:
        yield chosen
    yield DEFAULT_SOCKET
    found = (socket for folder in own_scratch_folders() if (socket := folder / SOCKET_NAME).exists())
    yield from map(str, sorted(found, key=_made_s, reverse=True))


def _made_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _View:
    pairs: tuple[PeerTraffic, ...]
    snapshot: ProbeSnapshot
    probe_cpu: float  # of one core, over the interval


def _views(source: ProbeSource, interval_s: float, once: bool) -> Iterator[_View]:
    """One per interval, the first after one interval. Raises SourceError."""
    traffic = HostTraffic()
    before = source.ask("all")
    traffic.update(before)
    while True:
        time.sleep(interval_s)
        now = source.ask("all")
        duration_s = now.taken_s - before.taken_s
        cpu = (now.cpu_s - before.cpu_s) / duration_s if duration_s > 0 else math.nan
        yield _View(traffic.update(now), now, cpu)
        if once:
            return
        before = now


def _show_live(console: Console, source: ProbeSource, interval_s: float) -> None:
    with Live(Text("measuring"), console=console, auto_refresh=False, screen=False) as live:
        for view in _views(source, interval_s, once=False):
            live.update(render(view.pairs, view.snapshot, view.probe_cpu), refresh=True)


def render(pairs: tuple[PeerTraffic, ...], snapshot: ProbeSnapshot, probe_cpu: float) -> RenderableType:
    """The table of one moment."""
    columns = _columns(pairs)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, left in columns:
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for pair in pairs:
        cells = _cells(pair, snapshot)
        table.add_row(*(cells[title] for title, _ in columns), style="" if pair.direction else "dim")
    lost = f", {snapshot.lost} connections lost" if snapshot.lost else ""
    head = f"{snapshot.host}: probe uses {_figure(100 * probe_cpu, '.2f')} % of a core{lost}"
    empty = [] if pairs else [Text("none of your processes on this host has a connection that the probe watches")]
    return Group(Text(head, style="bold"), Text(), table, *empty)


def _columns(pairs: tuple[PeerTraffic, ...]) -> list[tuple[str, bool]]:
    """(title, whether it is text); run and host only where there are several."""
    columns = [("from", True), ("to", True), ("out is", True), ("MB/s out", False), ("MB/s in", False)]
    columns += [("retransmits/s", False), ("RTT ms", False), ("source", True), ("age s", False)]
    if len({pair.host for pair in pairs}) > 1:
        columns.insert(0, ("host", True))
    if len({pair.run for pair in pairs}) > 1:
        columns.insert(0, ("run", True))
    return columns


def _cells(pair: PeerTraffic, snapshot: ProbeSnapshot) -> dict[str, str]:
    return {
        "run": pair.run or "-",
        "host": pair.host,
        "from": pair.name,
        "to": pair.peer,
        "out is": pair.direction or "-",
        "MB/s out": _figure(pair.out_bytes_per_s / 1e6, ".3f"),
        "MB/s in": _figure(pair.in_bytes_per_s / 1e6, ".3f"),
        "retransmits/s": _figure(pair.retransmits_per_s, ".1f"),
        "RTT ms": _figure(1e3 * pair.rtt_s, ".3f"),
        "source": pair.source,
        "age s": f"{max(0.0, time.time() - snapshot.taken_s):.1f}",
    }


def _print_plain(console: Console, view: _View, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(as_object(view.pairs, view.snapshot, view.probe_cpu), allow_nan=False))
        return
    for pair in view.pairs:
        cells = _cells(pair, view.snapshot)
        fields = " ".join(f"{title.replace(' ', '_')}={cells[title]}" for title, _ in _columns(view.pairs)[-7:])
        where = "" if not pair.run else f" run={pair.run}"
        print_line(console, Text(f"{pair.name} -> {pair.peer} host={pair.host}{where} {fields}"))
    if not view.pairs:
        print_line(console, Text("no process with a connection"))


def as_object(pairs: tuple[PeerTraffic, ...], snapshot: ProbeSnapshot, probe_cpu: float) -> dict[str, Any]:
    """For scripts; units are in the names, what is unknown is null."""
    rows = [{key: _or_null(value) for key, value in dataclasses.asdict(pair).items()} for pair in pairs]
    facts = {"host": snapshot.host, "taken_s": snapshot.taken_s, "lost": snapshot.lost}
    return {**facts, "probe_cpu": _or_null(probe_cpu), "talks": rows}


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _figure(value: float, spec: str) -> str:
    return "-" if math.isnan(value) else format(value, spec)
