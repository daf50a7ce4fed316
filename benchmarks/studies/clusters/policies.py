"""Time to accuracy of all policies on all shipped scenarios without effects of real machines (simulated).

    python -m benchmarks.studies.clusters.policies --json FILE --out benchmarks/results

The study runs the policies as the arbitrator does (dynamix_ps/sim/contest/evaluate.py):

- tuned-static: one size for all workers, the best of a geometric grid (two sizes per doubling, between the bounds of
  the scenario) by mean time over the reported seeds themselves. This is more tuning than a real job gets.
- proportional, pid (dynamic batching as published), goodput (Pollux's batch size, split for equal finish).
- ppo-structured: the policy that ships, with its safety net; ppo-structured-alone: without the net.
- model-alone: the policy `model`, without the net, which follows the advice of dynamix_ps/policy/model/advice.py.
  It shows the part of ppo-structured that is not learned.
- ppo-paper: the paper's actions and reward, trained by us, without a safety net.

`relative_time` is the interquartile mean, over seeds and scenarios, of a policy's time to target over that of its best
rival, with a stratified bootstrap interval of 95 %; below 1 is faster. `best_rival` is the one of tuned-static,
proportional, pid and goodput with the smallest interquartile mean in the scenario. `best_of_seed` is stricter: the
rival that is best with the same seed, which cannot be known in advance. `improvement` is the probability that a run of
the policy is shorter than one of the best rival. A run that never reaches the target counts with the longest time that
any policy needed in the scenario, or with its own time if that is longer; `missed` counts these runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.report.page import markdown, update_page, where
from benchmarks.suite.contenders import NO_SAFETY_NET
from dynamix_ps.config.schema import PolicySection, Ppo
from dynamix_ps.sim.contest.comparison import estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import TUNED, Contest, compare, compete
from dynamix_ps.sim.contest.contest_report import contest_table, draw_contest, write_rows
from dynamix_ps.sim.contest.evaluate import SEEDS
from dynamix_ps.sim.scenario.effects import effects_of
from dynamix_ps.sim.scenario.load import Scenario, load_scenario, shipped
from dynamix_ps.terminal import make_console, progress_bar

RIVALS = {
    TUNED: PolicySection(name="static"),
    "proportional": PolicySection(name="proportional"),
    "pid": PolicySection(name="pid"),
    "goodput": PolicySection(name="goodput"),
}
SHIPPED = "ppo-structured"
GROUPS = ("changing", "constant", "all")  # of scenarios; each single scenario is also a group
OURS = {
    SHIPPED: PolicySection(name="ppo"),
    "ppo-structured-alone": PolicySection(name="ppo", safety=NO_SAFETY_NET),
    "ppo-paper": PolicySection(name="ppo", ppo=Ppo(space="paper"), safety=NO_SAFETY_NET),
    "model-alone": PolicySection(name="model", safety=NO_SAFETY_NET),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write page, picture and one line per run here")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers")
    parser.add_argument("--scenario", action="append", help="only these (default: all that ship without effects)")
    parser.add_argument("--rivals-only", action="store_true", help="leave the learned policies out")
    args = parser.parse_args()
    scenarios = [load_scenario(name) for name in args.scenario or shipped()]
    if not args.scenario:
        scenarios = [one for one in scenarios if not effects_of(one)]  # clock.py runs the others
    console = make_console()
    began_s = time.monotonic()
    with progress_bar(console) as bar:
        task = bar.add_task("cells")
        contest = compete(
            scenarios,
            RIVALS if args.rivals_only else RIVALS | OURS,
            seeds=args.seeds,
            seed=args.seed,
            on_done=lambda done, total: bar.update(task, completed=done, total=total),
        )
    seconds = round(time.monotonic() - began_s, 1)
    figures = report(contest, scenarios) | {"seeds": args.seeds, "seconds": seconds}
    console.print(contest_table(contest))
    for group in GROUPS:
        if group in figures["groups"]:
            console.print(group_table(group, figures["groups"][group]))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        command = f"python -m benchmarks.studies.clusters.policies --out {args.out}"
        block = (
            f"`{command}`: {args.seeds} seeds, {seconds:,.0f} s on {where()}. Simulated.\n\n{page_tables(figures)}\n"
        )
        update_page(args.out / "policies.md", block)
        write_rows(args.out / "policies.csv", contest)
        rivals = tuple(RIVALS)
        reference = {name: contest.counted_s(contest.best_rival(rivals, name), name) for name in contest.scenarios}
        draw_contest(args.out / "policies.png", contest, reference, "the best rival of the scenario")


def report(contest: Contest, scenarios: list[Scenario]) -> dict[str, Any]:
    """All figures: per scenario and policy, and per group of scenarios and learned policy."""
    rng = np.random.default_rng(0)
    rivals = tuple(RIVALS)
    learned = [name for name in contest.policies if name not in rivals]
    groups = {
        "changing": [one.name for one in scenarios if not one.constant],
        "constant": [one.name for one in scenarios if one.constant],
        "all": [one.name for one in scenarios],
    } | {one.name: [one.name] for one in scenarios}
    cells = {
        name: {
            "constant": one.constant,
            "best_rival": contest.best_rival(rivals, name),
            "tuned_size": contest.tuned_sizes[name],
            "policies": {policy: _cell(contest, policy, name, rng) for policy in contest.policies},
        }
        for one in scenarios
        for name in (one.name,)
    }
    return {
        "scenarios": cells,
        "groups": {
            group: {policy: _against(contest, policy, names, rng) for policy in learned}
            for group, names in groups.items()
            if names and learned
        },
    }


def _cell(contest: Contest, policy: str, scenario: str, rng: np.random.Generator) -> dict[str, Any]:
    outcome = contest.outcomes[policy, scenario]
    times = estimate(interquartile_mean, contest.counted_s(policy, scenario)[None], rng=rng)
    return {
        "time_s": dataclasses.asdict(times),
        "missed": int((~outcome.reached).sum()),
        "windows": float(outcome.windows.mean()),
        "samples_per_s": float(outcome.samples_per_s.mean()),
        "accuracy": float(outcome.accuracy.mean()),
        "fallbacks": float(outcome.fallbacks.mean()),
    }


def _against(contest: Contest, policy: str, scenarios: list[str], rng: np.random.Generator) -> dict[str, Any]:
    rivals = tuple(RIVALS)
    return {
        "best_rival": dataclasses.asdict(compare(*contest.against_best(policy, rivals, scenarios), rng)),
        "best_of_seed": dataclasses.asdict(compare(*contest.against_every_seed(policy, rivals, scenarios), rng)),
    }


def page_tables(figures: dict[str, Any]) -> str:
    """Per scenario the times, per group of scenarios the comparisons, in Markdown."""
    times = [
        {"scenario": name, "": "constant" if one["constant"] else "changing"}
        | {policy: _in_words(policy, one, found) for policy, found in one["policies"].items()}
        for name, one in figures["scenarios"].items()
    ]
    comparisons = [
        {"scenarios": group, "policy": policy} | dict(zip(_COLUMNS, _against_in_words(found), strict=True))
        for group, policies in figures["groups"].items()
        for policy, found in policies.items()
        if group in GROUPS or policy == SHIPPED
    ]
    tables = [f"Time to target in s, interquartile mean:\n\n{markdown(times)}"]
    if comparisons:
        tables.append(
            f"Time relative to the best rival, below 1 is faster, with 95 % intervals:\n\n{markdown(comparisons)}"
        )
    return "\n\n".join(tables)


def _in_words(policy: str, scenario: dict[str, Any], found: dict[str, Any]) -> str:
    size = f" (b = {scenario['tuned_size']})" if policy == TUNED else ""
    missed = f", {found['missed']} missed" if found["missed"] else ""
    text = f"{found['time_s']['value']:,.0f}{size}{missed}"
    return f"**{text}**" if policy == scenario["best_rival"] else text


_COLUMNS = ("best rival of the scenario", "improvement", "best rival of every seed", "improvement over it")


def _against_in_words(one: dict[str, Any]) -> list[str]:
    return [
        f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
        for rival in ("best_rival", "best_of_seed")
        for figure in (one[rival]["relative_time"], one[rival]["improvement"])
    ]


def group_table(group: str, found: dict[str, Any]) -> Table:
    """One group of scenarios: every learned policy against the best rival."""
    table = Table(title=f"{group}: time relative to the best rival (simulated, below 1 is faster), 95 % interval")
    for column in ("policy", *_COLUMNS):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy, one in found.items():
        table.add_row(policy, *_against_in_words(one))
    return table


if __name__ == "__main__":
    main()
