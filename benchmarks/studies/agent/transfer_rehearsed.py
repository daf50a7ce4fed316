"""Policies trained on one family of trainings, used on another: real gradients, simulated clock.

    python -m benchmarks.studies.agent.transfer_rehearsed --json FILE [--quick] [--limit-s S]

Policies learn in the simulator, each in one family of families.py: a small CNN with SGD, the same with Adam, a model
ten times as large, a Transformer. Here each is used on a real training of its own family, and on one of another: CNN to
GPT and Transformer, Transformer to CNN, SGD to Adam, small to large. The policy that ships, the model alone and fixed
sizes train with the same seeds. Where a run is left, policies whose files are missing are trained first, in about four
minutes of a core; they must have the digests of those that made the kept rows. The other modules:

    transfer_rehearsed_cells.py   directions, policies, clusters, contenders, questions
    transfer_rehearsed_page.py    tables and picture; ratios and verdicts are those of the study of the agent

Every run is a row of transfer-rehearsed/cells.csv, written as soon as it ends, and the same command goes on from there.
The page grows with the directions whose runs have all ended on a cluster. `--quick` runs one seed of the first one
alone. Delete the rows after a change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.studies.agent.transfer_rehearsed_cells import are_known, cells, train_policies
from benchmarks.studies.agent.transfer_rehearsed_page import figures, whole, write_page
from benchmarks.studies.rehearsed_study import RehearsedStudy


def prepare(kept: Path, is_left: Callable[[], bool]) -> None:
    if not are_known(kept) or is_left():
        train_policies(kept)


main = RehearsedStudy(
    module="agent.transfer_rehearsed",
    about=__doc__,
    quick="the first seed of the first direction alone",
    cells=cells,
    write_page=write_page,
    figures=figures,
    prepare=prepare,
    counted=whole,
).main


if __name__ == "__main__":
    sys.exit(main())
