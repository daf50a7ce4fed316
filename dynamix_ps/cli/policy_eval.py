"""One comparison of policies in the simulator: progress, the table, and what is left in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.contest.contest import compete
from dynamix_ps.sim.contest.contest_report import contest_table, draw_contest, write_rows
from dynamix_ps.sim.scenario.load import load_scenario, shipped
from dynamix_ps.terminal import make_console, progress_bar


def compare(
    policies: Mapping[str, PolicySection],
    reference: str,
    scenarios: Sequence[str],
    workers: int | None,
    seeds: int,
    seed: int,
    csv_file: Path | None,
    png_file: Path | None,
) -> None:
    """Print the table of these policies. The arguments are those of `dynamix policy eval`.

    Args:
        reference: the policy whose times are 1 in the picture.
    """
    chosen = [load_scenario(name) for name in scenarios or shipped()]
    if workers is not None:
        chosen = [scenario.with_workers(workers) for scenario in chosen]
    console = make_console()
    with progress_bar(console) as bar:
        task = bar.add_task("policies on scenarios")
        contest = compete(
            chosen,
            policies,
            seeds=seeds,
            seed=seed,
            on_done=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(contest_table(contest))
    if csv_file is not None:
        write_rows(csv_file, contest)
    if png_file is not None:
        times = {scenario.name: contest.counted_s(reference, scenario.name) for scenario in chosen}
        draw_contest(png_file, contest, times, reference)
