"""What a page says of a run in words and large figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dynamix_ps.report.resume import begin_text, how_to_go_on
from dynamix_ps.run_record.evaluations import main_names, shown


class Tile(NamedTuple):
    """A large figure."""

    value: str
    meaning: str


def sentences(summary: dict[str, Any]) -> list[str]:
    """What happened, and what the batch sizes gained: a sentence each, and what else must be known."""
    told = [_happened(summary), _gained(summary["gain"], summary["counted"])]
    if progress := summary["gain"]["progress"]:
        told.append(f"{_upper(progress)}.")
    if summary["restart"]:
        told.append(f"The job was begun again: {summary['restart']}.")
    if begin := begin_text(summary):
        told.append(f"{_upper(begin)}.")
    if how := how_to_go_on(summary):
        told.append(f"To go on from the newest checkpoint: {how}")
    return told


def tiles(summary: dict[str, Any]) -> Iterator[Tile]:
    """The figures that people look for first; one that is not known is left out."""
    gain, counted = summary["gain"], summary["counted"]
    if summary["exit_code"] is None and summary["trained_ratio"] is not None:
        yield Tile(f"{100 * summary['trained_ratio']:.0f} %", "done")
    if summary["exit_code"] is None and summary["time_to_go_s"] is not None:
        yield Tile(_span(summary["time_to_go_s"]), "to go, about")
    if ratio := gain["samples_per_s_ratio"]:
        estimated = ", estimated" if gain["first"]["estimated"] else ""
        yield Tile(f"{ratio:.2f} times", f"{counted}/s of the first sizes{estimated}")
    if summary["samples_per_s"]:
        yield Tile(f"{summary['samples_per_s']:,.0f}", f"{counted}/s, mean of the run")
    if summary["train_s"]:
        yield Tile(_span(summary["train_s"]), "of training")
    for name in main_names(summary["metrics"]):
        if (value := summary["metrics"][name]["last"]) is not None:
            yield Tile(shown(name, value), f"test {name}")
    if (reached_s := summary["time_to_accuracy_s"]) is not None:
        yield Tile(_span(reached_s), f"to an accuracy of {100 * summary['target_accuracy']:g} %")
    if (last := gain["last"]) and last["wait_fraction"]:
        mean = sum(last["wait_fraction"]) / len(last["wait_fraction"])
        yield Tile(f"{100 * mean:.0f} %", "of the time spent waiting, last quarter")


def how_it_ended(summary: dict[str, Any]) -> str:
    """`finished`, `exit code 4: worker-1 was killed`, or why there is no end."""
    if summary["exit_code"] is None:
        return str(summary["reason"])
    return "finished" if summary["exit_code"] == 0 else f"exit code {summary['exit_code']}: {summary['reason']}"


def _happened(summary: dict[str, Any]) -> str:
    who = "1 worker" if summary["workers"] == 1 else f"{summary['workers']:,} workers"
    done = f"{who} trained {summary['samples']:,} {summary['counted']} in {summary['iterations']:,} iterations"
    if summary["train_s"]:
        done += f" and {_span(summary['train_s'])}"
    policy = summary["policy"] if summary["mode"] == "adapt" else f"{summary['policy']} (mode {summary['mode']})"
    done += f", with the policy {policy}"
    metrics = summary["metrics"]
    if reached := [f"a test {name} of {shown(name, metrics[name]['last'])}" for name in main_names(metrics)]:
        done += f", and reached {' and '.join(reached)}"
    if summary["exit_code"] in (0, None):
        return f"{done}." if summary["exit_code"] == 0 else f"So far {done}."
    return f"{_upper(how_it_ended(summary)).rstrip('.')}. Until then {done}."


def _gained(gain: dict[str, Any], counted: str) -> str:
    text = gain["text"].removeprefix("unknown: ")
    if gain["samples_per_s_ratio"] is None:
        return f"What the batch sizes gained is unknown: {text}."
    return f"With the batch sizes at its end it trains {text}."


def _span(seconds: float) -> str:
    """`62.8 s`, `12 min 5 s`, `3 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
