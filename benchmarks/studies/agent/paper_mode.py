"""What the agent of DYNAMIX comes to under two readings of its reward, rehearsed: real gradients, simulated clock.

    python -m benchmarks.studies.agent.paper_mode --json FILE [--quick] [--limit-s S]

The paper's reward subtracts T_iter and does not say in which unit. Here it is the time of an iteration, or that of a
sample. The agents of both readings meet the static sizes of the paper. The policy of the first reading ships; that of
the second is trained here if its file is missing, and the same seed gives the same weights. The other modules:

    paper_mode_cells.py     workloads, rates, clusters, contenders
    paper_mode_answers.py   ratios of times and differences of accuracies, pooled over groups
    paper_mode_page.py      tables and picture

Every run is a row of paper-mode/cells.csv, written as soon as it ends, and the same command goes on from there. The
page is made from all rows, so it grows with them. `--quick` runs the first seed of one workload alone. Delete the rows
after a change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.studies.agent.paper_mode_answers import Readings
from benchmarks.studies.agent.paper_mode_cells import TRAINING, cells, train_reading
from benchmarks.studies.agent.paper_mode_page import figures, write_page
from benchmarks.studies.rehearsed_study import RehearsedStudy


def policy_file(kept: Path) -> Path:
    return kept / "per-sample.npz"


def prepare(kept: Path, is_left: Callable[[], bool]) -> None:
    """Train the second reading, if its policy has no file."""
    file = policy_file(kept)
    if not file.exists():
        print(f"training {file}: {TRAINING.total_windows:,} windows of random clusters")
        train_reading(file)


main = RehearsedStudy(
    module="agent.paper_mode",
    about=__doc__,
    quick="the first seed of one workload alone",
    cells=lambda quick, kept, scratch: cells(quick, policy_file(kept)),
    write_page=lambda out, outcomes, told: write_page(out, Readings(outcomes), told),
    figures=lambda outcomes: {"answers": figures(Readings(outcomes))},
    prepare=prepare,
).main


if __name__ == "__main__":
    sys.exit(main())
