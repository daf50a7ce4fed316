"""The tables and figures that README and docs/results.md print, from the raw tables of the studies behind them.

    python -m benchmarks.studies.published

It renews the tables between the marks of both pages, runs nothing, and takes seconds. `in_sentences` has the figures
that stand in sentences; tests/unit/benchmarks/studies/test_published.py compares both pages with all of it.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.report.grid_page import with_ours
from benchmarks.report.one_race import interval
from benchmarks.report.page import RESULTS, markdown, update_page
from benchmarks.studies.agent import transfer_rehearsed_cells
from benchmarks.studies.agent import transfer_rehearsed_page as transfer_page
from benchmarks.studies.agent.answers import Answer, Runs
from benchmarks.studies.agent.cells import (
    AGENT,
    BEST_STATIC,
    MODEL,
    QUESTIONS,
    QUIET,
    STEADY,
    STEEP,
    UNEVEN,
    WORKLOADS,
    Question,
)
from benchmarks.studies.agent.cells import cells as agent_cells
from benchmarks.studies.agent.page import in_words
from benchmarks.studies.agent.worth import runs_of, whole
from benchmarks.studies.bed import clock as bed_clock
from benchmarks.studies.bed.clock_answers import Agreement, agreements
from benchmarks.studies.clusters import stigmergy
from benchmarks.studies.clusters.scaling_page import figures_of, over_static
from benchmarks.studies.clusters.stigmergy_page import figures_of as stigmergy_figures
from benchmarks.studies.kept_rows import read_rows
from benchmarks.studies.language_models import gpt_cells, gpt_page
from benchmarks.studies.membership.spot import answer as spot_answer
from benchmarks.studies.rehearsed_cells import Cell, Name, Table, outcome_of
from benchmarks.suite.contenders import BY_HAND, DDP, DDP_BY_HAND
from benchmarks.suite.statistics import (
    OURS,
    STATIC,
    Race,
    difference,
    final_value,
    races,
    ratio,
    relative_time,
    seconds_per_sample,
)
from benchmarks.suite.tables import read_tables
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.rehearsal.outcome import RehearsalOutcome
from dynamix_ps.sim.contest.comparison import Estimate

README, RESULTS_PAGE = Path("README.md"), Path("docs/results.md")
NETWORK = {
    "slow-link": "one worker behind a slow link",
    "server-ingress": "a narrow link into the server",
    "lossy-link": "a lossy link",
}
BED = {
    "h-level-4": "speeds 4 times apart",
    "slow-link": "one worker behind a slow link",
    "hl-schedule": "speeds that change all the time",
}
CONTENDERS_ON_BED = {"goodput": "`goodput`", MODEL: "model alone", AGENT: "`ppo`"}
Row = dict[str, str]


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for page, blocks in tables().items():
        update_page(page, *blocks)
    return 0


def tables() -> dict[Path, list[str]]:
    """The blocks between the marks of each page."""
    answers = agent_answers(RESULTS)
    return {
        README: [f"{markdown(rows)}\n" for rows in (_first_columns(answers.rows()), ddp_rows(RESULTS))],
        RESULTS_PAGE: [
            f"{markdown(rows)}\n"
            for rows in (answers.rows(), bed_rows(RESULTS), ddp_rows(RESULTS), network_rows(RESULTS))
        ],
    }


def in_sentences() -> dict[str, list[str]]:
    """Figures in the sentences of docs/results.md, by a piece of the line that has them."""
    answers, gpt, transfer = agent_answers(RESULTS), _gpt(RESULTS), _transfer(RESULTS)
    scaling = figures_of(read_rows(RESULTS / "scaling.csv"))
    stigmergy_rows = read_rows(RESULTS / "stigmergy.csv")
    decentral = stigmergy_figures(stigmergy.of_complete_clusters(stigmergy.cells_of(False), stigmergy_rows))
    spot = spot_answer(read_rows(RESULTS / "spot.csv"))
    off = [one.off.value for one in bed_agreements(RESULTS)]
    steep, by_hand = answers.answer(AGENT, BEST_STATIC, STEEP), answers.ratio(AGENT, BY_HAND)
    mean_off = math.exp(sum(map(math.log, off)) / len(off))
    return {
        "Rehearsed, they come to": [f"{min(off):.2f} to {max(off):.2f}", f"{mean_off:.2f} in the mean"],
        "Uneven workers take": [f"{one.value:.2f}" for one in (steep.ratio, steep.clock) if one],
        "had by hand": [f"{1 / by_hand.value:.2f} times"] if by_hand else [],
        "With equal workers": [interval(answers.answer(AGENT, BEST_STATIC, ("homogeneous",)).ratio)],
        "Shares are worth most": [
            interval(answers.ratio("ppo without shares", AGENT)),
            interval(answers.ratio("ppo without batch", AGENT)),
        ],
        "(../benchmarks/results/transfer-rehearsed.md)": [
            interval(transfer["away", "home"]),
            interval(transfer["ppo", "home"]),
        ],
        "(../benchmarks/results/scaling.md)": [over_static(scaling, cluster) for cluster in ("racks", "alone")],
        "(../benchmarks/results/gpt.md)": [
            interval(gpt[AGENT, BEST_STATIC]),
            in_words(gpt[AGENT, "goodput"]),
            interval(gpt["paper, tokens", BEST_STATIC]),
        ],
        "(../benchmarks/results/stigmergy.md)": [in_words(decentral.ratios["all"][AGENT])],
        "(../benchmarks/results/spot.md)": [interval(spot.time if spot else None)],
    }


class AgentAnswers:
    """The answers of the study of the agent."""

    def __init__(self, results: Path) -> None:
        table = Table(results / "agent" / "cells.csv")
        with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
            every = whole(agent_cells(False, Path(folder)), table)
            self.outside, rows = table.outside(every), table.rows(every)
        self.missing = len(every) - len(rows)
        self.runs: Runs = runs_of(rows)

    def answer(self, contender: str, reference: str, scenarios: Sequence[str] = ()) -> Answer:
        """To the first question about these two, on these clusters if any are given."""
        question = next(
            one
            for one in QUESTIONS
            if (one.contender, one.reference) == (contender, reference) and tuple(scenarios) in ((), one.scenarios)
        )
        return self.runs.answer(question, tuple(WORKLOADS))

    def ratio(self, contender: str, reference: str) -> Estimate | None:
        return self.answer(contender, reference).ratio

    def rows(self) -> list[Row]:
        """The table of results."""
        apart = "speeds {} times apart"
        asked = (
            (apart.format("8 and 10"), "`ppo` over the best fixed size", AGENT, BEST_STATIC, STEEP),
            (
                apart.format("4, 8 and 10"),
                "`ppo` over sizes set once by hand in proportion to the speeds",
                AGENT, BY_HAND, STEADY,
            ),
            ("equal workers", "`ppo` over the best fixed size", AGENT, BEST_STATIC, ("homogeneous",)),
            (
                "quiet: equal, or 4 and 8 times apart",
                "`ppo` over its model of the cluster, nothing learned",
                AGENT, MODEL, QUIET,
            ),
            ("cliffs, shared hosts, a thin link, recurring work", "the same", AGENT, MODEL, UNEVEN),
            ("the same", "`goodput` over that model", "goodput", MODEL, UNEVEN),
        )  # fmt: skip
        rows = []
        for clusters, who, contender, reference, scenarios in asked:
            found = self.answer(contender, reference, scenarios)
            parts = {"time": found.ratio, "samples": found.samples, "seconds per sample": found.clock}
            told = {name: in_words(one) if one else "" for name, one in parts.items()}
            rows.append({"clusters": clusters, "who over whom": who} | told)
        return rows


@cache
def agent_answers(results: Path) -> AgentAnswers:
    """Read once: the table is large."""
    return AgentAnswers(results)


@cache
def bed_agreements(results: Path) -> list[Agreement]:
    """Of the check of the clock, from its kept runs."""
    check, folder = bed_clock.FULL, results / bed_clock.FULL.stem
    cells = read_tables(folder)
    measured = {one.name: clock for one in cells if (clock := check.clock_of(one.curve)) is not None}
    with tempfile.TemporaryDirectory(prefix="dynamix-") as scratch:
        rehearsals = bed_clock.rehearsals(check, cells, Path(scratch))
        rehearsed = bed_clock.clocks_of(check, Table(folder / "rehearsed.csv"), rehearsals)
    return agreements(measured, rehearsed, check.scenarios, check.contenders, bed_clock.REFERENCE)


def _first_columns(rows: Sequence[Row]) -> list[Row]:
    """Of README: times, and of the clusters on which `ppo` is compared with its model only the quiet ones."""
    shown = ("clusters", "who over whom", "time")
    return [{name: row[name] for name in shown} for row in rows if "`ppo`" in row["who over whom"]]


def bed_rows(results: Path) -> list[Row]:
    """Seconds per sample on the bed over those of the fixed size."""
    found = {(one.scenario, one.contender): interval(one.measured) for one in bed_agreements(results)}
    return [
        {"scenario": title} | {told: found[scenario, name] for name, told in CONTENDERS_ON_BED.items()}
        for scenario, title in BED.items()
    ]


def ddp_rows(results: Path) -> list[Row]:
    """Seconds per sample beside torch's DDP, on the bed."""
    folder = results / "beside-ddp"
    (race,) = races(read_tables(folder))
    rivals = {"equal sizes": DDP, "sizes by hand": DDP_BY_HAND}
    return [
        {
            "`ppo` over torch's DDP": title,
            "seconds per sample": interval(ratio(race, OURS, rival, seconds_per_sample), "{:.3f}"),
        }
        for title, rival in rivals.items()
    ]


def network_rows(results: Path) -> list[Row]:
    """Time of `ppo` over that of its rivals behind slow, shared and lossy links."""
    folder = results / "network"
    races = {race.scenario: race for race in with_ours(read_tables(folder), str(folder))}
    rows = [_network_row(title, [races[scenario]]) for scenario, title in NETWORK.items()]
    return [*rows, _network_row("**these three**", [races[one] for one in NETWORK])]


def _network_row(title: str, some: Sequence[Race]) -> Row:
    rivals = {"of static": STATIC, "of `pid`": "pid", "of `goodput`": "goodput"}
    times = {column: _bold_if_slower(relative_time(some, OURS, rival)) for column, rival in rivals.items()}
    points = difference(some[0], OURS, STATIC, final_value) if len(some) == 1 else None
    above = f"{100 * points.value:+.1f}" if points else ""
    return {"scenario": title} | times | {"final accuracy, points above static": above}


def _bold_if_slower(one: Estimate | None) -> str:
    return f"**{interval(one)}**" if one and one.value > 1 else interval(one)


def _gpt(results: Path) -> dict[tuple[str, str], Estimate | None]:
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        outcomes = _outcomes(gpt_cells.cells(False, Path(folder)), results / gpt_page.STEM)
    return _ratios(gpt_page.runs_of(outcomes), gpt_cells.QUESTIONS, (gpt_cells.NAME,))


def _transfer(results: Path) -> dict[tuple[str, str], Estimate | None]:
    kept = results / transfer_page.STEM
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        every = transfer_rehearsed_cells.cells(False, kept, Path(folder))
        outcomes = transfer_page.whole(_outcomes(every, kept), [cell.name for cell in every])
    directions = tuple(one.workload for one in transfer_rehearsed_cells.DIRECTIONS)
    return _ratios(transfer_page.runs_of(outcomes), transfer_rehearsed_cells.QUESTIONS, directions)


def _outcomes(cells: Sequence[Cell], folder: Path) -> dict[Name, RehearsalOutcome]:
    return {name: outcome_of(row) for name, row in Table(folder / "cells.csv").rows(cells).items()}


def _ratios(
    runs: Runs, questions: Sequence[Question], workloads: Sequence[str]
) -> dict[tuple[str, str], Estimate | None]:
    return {(one.contender, one.reference): runs.answer(one, workloads).ratio for one in questions}


if __name__ == "__main__":
    sys.exit(main())
