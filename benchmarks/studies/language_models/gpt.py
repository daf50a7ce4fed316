"""Batch sizes of a language model: ours, goodput, tuned fixed sizes and the space of DYNAMIX, rehearsed.

    python -m benchmarks.studies.language_models.gpt --json FILE [--quick] [--limit-s S]

DYNAMIX asks whether sizes of 32 to 1024 in steps of 25 and 100 are enough for language models. Gradients are real, the
clock is simulated (docs/rehearsal.md); docs/evaluation.md has the protocol. The other modules:

    gpt_cells.py   the training, clusters, contenders, questions with their bars
    gpt_page.py    tables and picture; ratios and verdicts are those of the study of the agent (agent/answers.py)

Every run is a row of gpt/cells.csv, written as soon as it ends, and the same command goes on from there. The page is
made from all rows, so it grows with them. `--quick` runs the first seed of one cluster alone. Delete the rows after a
change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import sys

from benchmarks.studies.language_models.gpt_cells import cells
from benchmarks.studies.language_models.gpt_page import figures, write_page
from benchmarks.studies.rehearsed_study import RehearsedStudy

main = RehearsedStudy(
    module="language_models.gpt",
    about=__doc__,
    quick="the first seed of one cluster alone",
    cells=lambda quick, kept, scratch: cells(quick, scratch),
    write_page=write_page,
    figures=figures,
).main


if __name__ == "__main__":
    sys.exit(main())
