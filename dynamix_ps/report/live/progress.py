"""How far a run is, in words: for the head of the live table, and for the line where there is no terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from dynamix_ps.report.live.cells import figure, percent
from dynamix_ps.report.live.events import sizes_text
from dynamix_ps.run_record.evaluations import curves, main_names, shown
from dynamix_ps.run_record.run_state import RunState

BAR_WIDTH = 16
GONE_SHOWN = 3  # workers that do not train are named up to so many
_AS_EXPECTED = frozenset({"running", "finished", "starting"})


def progress_bar(state: RunState, ascii_only: bool) -> Text:
    """`━━━━━━──── 42 %`; empty where the script names no end."""
    ratio = state.progress.trained_ratio
    if ratio is None:
        return Text()
    done, rest = ("#", ".") if ascii_only else ("━", "─")
    drawn = min(max(round(ratio * BAR_WIDTH), 0), BAR_WIDTH)
    bar = Text(done * drawn, style="#56b4e9").append(rest * (BAR_WIDTH - drawn), style="dim")
    return bar.append(f" {percent(ratio)}", style="bold")


def times(state: RunState, elapsed_s: float) -> str:
    """`01:12, about 02:30 to go`."""
    to_go_s = state.progress.time_to_go_s
    return clock_text(elapsed_s) + ("" if to_go_s is None else f", about {clock_text(to_go_s)} to go")


def figures(state: RunState) -> Iterator[str]:
    """What there is of iteration, epoch, and rate of all workers."""
    yield f"iteration {state.workers.iteration:,}"
    if not math.isnan(state.progress.epoch):
        yield f"epoch {state.progress.epoch:.2f}"
    if not math.isnan(state.workers.samples_per_s):
        yield f"{state.workers.samples_per_s:,.0f} {state.counted}/s"


def evaluated(state: RunState) -> Iterator[str]:
    """The newest accuracy where there is one, otherwise the newest of the first few named values."""
    newest = {name: curve.last for name, curve in curves(state.progress.evaluations).items()}
    yield from (f"test {name} {shown(name, newest[name])}" for name in main_names(newest))


def plain_line(state: RunState, elapsed_s: float) -> str:
    """Everything in one line. Empty before training begins: no window is known."""
    trained = [worker for worker in state.workers.values() if worker.windows]
    if not trained:
        return ""
    done = state.progress.trained_ratio
    parts = [
        times(state, elapsed_s),
        *([f"{percent(done)} done"] if done is not None else []),
        *figures(state),
        *evaluated(state),
    ]
    there = [worker for worker in state.workers.there if worker.batch_size is not None]
    sizes = sizes_text([worker.batch_size for worker in there if worker.batch_size is not None])
    parts.append(f"batch sizes {sizes} (plan {state.arbitrator.plan_version})")
    waits = [worker.shares["wait"] for worker in there if "wait" in worker.shares]
    known = [wait for wait in waits if not math.isnan(wait)]
    if known:
        parts.append(f"waiting {percent(sum(known) / len(known))}")
    parts.append(f"loss {figure(state.progress.loss, '.3f')}")
    others = [f"worker {one.rank} {one.phase}" for one in state.workers.values() if one.phase not in _AS_EXPECTED]
    parts += others[:GONE_SHOWN] + ([f"{len(others) - GONE_SHOWN} more"] if len(others) > GONE_SHOWN else [])
    if state.arbitrator.safety_net:
        parts.append(f"safety net {state.arbitrator.safety_net}")
    return "  ".join(parts)


def clock_text(seconds: float) -> str:
    """`04:05`, from an hour on `1:04:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
