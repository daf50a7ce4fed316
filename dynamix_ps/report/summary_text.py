"""summary.md: the same figures as summary.json, for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dynamix_ps.report.resume import begin_text, counts, how_to_go_on, of_this_run
from dynamix_ps.run_record.evaluations import main_names, shown, titled
from dynamix_ps.run_record.model import safety_net_text

EVALUATION_ROWS = 12


def markdown(summary: dict[str, Any], plots: Sequence[str]) -> str:
    """A page with the result first, then workers, evaluations, degradations, plots and files."""
    parts = [
        f"# {summary['run']}",
        _result(summary),
        *_resume(summary),
        "\n\n".join(f"**{name.capitalize()}**: {text}." for name, text in _gained(summary)),
        _table(("", "value"), (*came_and_went(summary), *figures(summary))),
        "## Workers\n\n"
        + _table(*worker_table(summary["per_worker"], summary["counted"]))
        + (f"\n\n{why}" if (why := about_waiting(summary["heterogeneity"])) else ""),
        "## Sums, network and machine\n\n" + _measured(summary["per_worker"], summary["within_one_host"]),
        "## Evaluations on the test set\n\n" + _evaluations(summary["evaluations"], summary["metrics"]),
        "## Degraded\n\n" + _bullets(summary["degraded"], "Nothing: everything worked as configured."),
    ]
    if plots:
        parts.append("## Plots\n\n" + "\n\n".join(f"![{name}]({name})" for name in _overview_first(plots)))
    parts.append(
        "## Files\n\n"
        + _bullets(
            (
                "`config.resolved.yaml`, `manifest.json`: what was run, with what, where",
                "`windows.csv`, `links.csv`, `servers.csv`, `plans.csv`, `events.jsonl`: everything recorded",
                "`tensorboard/`: the same as curves (`tensorboard --logdir`)",
                "`logs/`: output of every role",
            ),
            "",
        )
    )
    return "\n\n".join(parts) + "\n"


def headline(summary: dict[str, Any]) -> list[str]:
    """The result in a few lines for the terminal: how it ended, how fast and how good, what was gained."""
    figures, metrics = [f"{summary['iterations']:,} iterations{of_this_run(summary)}"], summary["metrics"]
    if summary["samples_per_s"]:
        figures.append(
            f"{summary['train_s']:.1f} s of training, {summary['samples_per_s']:,.0f} {summary['counted']}/s"
        )
    if summary["units_per_s"]:
        figures.append(f"{summary['units_per_s']:,.0f} units/s")
    figures += [f"test {name} {shown(name, metrics[name]['last'])}" for name in main_names(metrics)]
    if summary["time_to_accuracy_s"] is not None:
        figures.append(f"{_percent(summary['target_accuracy'])} after {summary['time_to_accuracy_s']:.1f} s")
    ended = "" if summary["exit_code"] in (0, None) else f"ended with exit code {summary['exit_code']}: "
    restart = (summary["restart"],) if summary["restart"] else ()
    begin = [text] if (text := begin_text(summary)) else []
    end = [f"to go on from the newest checkpoint: {how}"] if (how := how_to_go_on(summary)) else []
    changes = (*restart, *begin, *summary["losses"], *summary["departures"], *summary["arrivals"])
    gained = [f"{name}: {text}" for name, text in _gained(summary)]
    return [ended + summary["reason"], *changes, ", ".join(figures), *gained, *end]


def _gained(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """What was gained in samples per second, and if the global batch has changed, in progress; what could be."""
    yield "gain", summary["gain"]["text"]
    if summary["gain"]["progress"]:
        yield "progress", summary["gain"]["progress"]
    if summary["fewer_bytes"]:
        yield "fewer bytes", summary["fewer_bytes"]
    if summary["wire"]:
        yield "wire", summary["wire"]


def _result(summary: dict[str, Any]) -> str:
    if summary["exit_code"] is None:
        return f"**Not finished**: {summary['reason']}"
    ended = "Finished" if summary["exit_code"] == 0 else f"**Ended with exit code {summary['exit_code']}**"
    return f"{ended}: {summary['reason']}"


def _resume(summary: dict[str, Any]) -> Iterable[str]:
    """Where the run went on from, and what goes on from its end."""
    if text := begin_text(summary):
        yield f"{text[0].upper()}{text[1:]}."
    if how := how_to_go_on(summary, "`"):
        yield f"To go on from the newest checkpoint: {how}"


def figures(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Names and values of the whole run, for a table."""
    version = summary["comm_version"]
    yield "data plane", summary["comm"] + (f" {version}" if version and version != "none" else "")
    yield "policy", f"{summary['policy']} (mode {summary['mode']})"
    yield "workers", f"{summary['workers']} ({summary['heterogeneity']})"
    if summary["restart"]:
        yield "begun again", summary["restart"]
    yield from counts(summary)
    yield f"{summary['counted']} per second", _unit(summary["samples_per_s"], "", 0)
    if summary["units_per_s"]:
        yield "units (such as tokens) per second", _unit(summary["units_per_s"], "", 0)
    yield "plans in force / published", f"{summary['plans_applied']} / {summary['plans_published']}"
    if (net := summary["safety_net"])["times"]:
        yield "safety net", f"{safety_net_text(**net)} by proportional shares in place of the policy"
    if (rate := summary["learning_rate"])["lr"] == "guard":
        yield "learning rate", _guarded(rate)
    yield "batch sizes", f"{_sizes(summary['batch_sizes_start'])} at start, {_sizes(summary['batch_sizes_end'])} at end"
    for name, metric in summary["metrics"].items():
        best = "" if metric["best"] is None else f" (best: {shown(name, metric['best'])})"
        yield f"final {name}", shown(name, metric["last"]) + best
    yield "gradient noise scale at the end", _unit(summary["noise_scale"], summary["counted"], 0)
    if any(summary["compiled_graphs"]):
        later = _sizes(summary["compiled_graphs_later"])
        yield "graphs by torch.compile", f"{_sizes(summary['compiled_graphs'])}, after the first iteration {later}"
    if summary["target_accuracy"] is not None:
        reached = summary["time_to_accuracy_s"]
        text = "not reached" if reached is None else f"after {reached:.1f} s"
        yield f"accuracy of {_percent(summary['target_accuracy'])}", text


def came_and_went(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """What happened, and to whom, in an elastic job."""
    for happened, of in (("lost", "losses"), ("left", "departures"), ("entered", "arrivals")):
        yield from ((happened, text) for text in summary[of])


def _guarded(rate: dict[str, Any]) -> str:
    times = len(rate["rollbacks"])
    text = f"the guard leaves {rate['guard']:g} of it at the end"
    if times:
        where = ", ".join(f"{iteration:,}" for iteration in rate["rollbacks"])
        text += f"; weights taken back and rate halved in iteration{'s' if times > 1 else ''} {where}"
    return text


def worker_table(rows: list[dict[str, Any]], counted: str) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Head, and one row per worker; where they are on several hosts, those of one host stand together."""
    hosts = list(dict.fromkeys(row["host"] for row in rows))
    several = len(hosts) > 1
    head = ("worker", "state", "speed", "batch", f"{counted}/s", "compute", "push-pull", "wait", "input")
    cells: list[Sequence[str]] = [
        (
            *((_or_dash(row["host"]),) if several else ()),
            str(row["rank"]),
            row["state"] + (f": {row['error']}" if row["error"] else ""),
            _unit(row["speed"], "", 2),
            f"{_or_dash(row['batch_size_start'])} → {_or_dash(row['batch_size_end'])}",
            _unit(row["samples_per_s"], "", 0),
            *(_percent(row[f"{part}_fraction"]) for part in ("compute", "push_pull", "wait", "input")),
        )
        for row in sorted(rows, key=lambda row: hosts.index(row["host"]))
    ]
    return ("host", *head) if several else head, cells


def about_waiting(heterogeneity: str) -> str:
    """Why workers with a CPU quota wait although their sizes fit; empty where speeds come about in another way."""
    if not heterogeneity.startswith("cgroup"):
        return ""
    return (
        "A CPU quota stops a worker for the rest of a period (20 ms as a rule) once its share is used. So workers "
        "are ready at different moments even at sizes that fit their speeds exactly, and wait for parts of a period. "
        "This waiting weighs more the shorter an iteration is, and costs hardly any throughput."
    )


def _measured(rows: list[dict[str, Any]], within_one_host: bool) -> str:
    """What was measured beside training; that of a network only where there is one."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "worker": lambda row: str(row["rank"]),
        "sums": lambda row: _unit(row["summed_bytes_per_s"], "MB/s", 1, 1e-6),
    }
    if not within_one_host:
        columns |= {
            "network source": lambda row: _or_dash(row["network_source"]),
            "pushed": lambda row: _unit(row["pushed_bytes"], "MB", 1, 1e-6),
            "pulled": lambda row: _unit(row["pulled_bytes"], "MB", 1, 1e-6),
            "retransmits": lambda row: _unit(row["retransmits"], "", 0),
            "round trip": lambda row: _unit(row["mean_rtt_s"], "ms", 3, 1e3),
        }
    columns |= {
        "CPU": lambda row: _percent(row["cpu_fraction"]),
        "held back by quota": lambda row: _percent(row["throttled_fraction"]),
    }
    return _table(list(columns), ([cell(row) for cell in columns.values()] for row in rows))


def _evaluations(points: list[dict[str, Any]], metrics: dict[str, Any]) -> str:
    if not points:
        return "No evaluation was recorded."
    points = _joined(points)
    apart = -(-len(points) // EVALUATION_ROWS)
    kept = points[::-apart][::-1]  # counted from the last one, which is the result
    note = f"\n\n{len(kept)} of {len(points)} evaluations; `summary.json` has all of them." if apart > 1 else ""
    rows = (
        (
            f"{point['iteration']:,}",
            str(point["epoch"]),
            _unit(point["time_s"], "s", 1),
            *(shown(name, point["values"].get(name)) for name in metrics),
        )
        for point in kept
    )
    heads = [titled(name, metric["higher_is_better"]) for name, metric in metrics.items()]
    return _table(("iteration", "epoch", "time", *heads), rows) + note


def _joined(points: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One point for evaluations of other values after the same iteration, such as those of averaged weights."""
    joined: list[dict[str, Any]] = []
    for point in points:
        before = joined[-1] if joined else None
        if before and before["iteration"] == point["iteration"] and not before["values"].keys() & point["values"]:
            joined[-1] = before | {"values": before["values"] | point["values"]}
        else:
            joined.append(point)
    return joined


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def _bullets(items: Iterable[str], when_empty: str) -> str:
    return "\n".join(f"- {item}" for item in items) or when_empty


def _overview_first(plots: Sequence[str]) -> list[str]:
    return sorted(plots, key=lambda name: (not name.endswith("overview.png"), name))


def _sizes(sizes: Sequence[int | None]) -> str:
    return "/".join(_or_dash(size) for size in sizes)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _unit(value: float | None, unit: str, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:,.{digits}f}" + (f" {unit}" if unit else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
