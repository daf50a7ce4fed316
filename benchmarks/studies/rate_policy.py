"""Does a network decide better on the learning rate than linear decay does? Trained and judged in the simulator.

    python -m benchmarks.studies.rate_policy      # goes on from the kept trainings

A network (rate_agent.py) corrects linear decay. It is judged on workloads that it was not trained on: one network for
each group of HELD_OUT, trained on all others. Trainings are drawn like those of fitted.py, with the tuned rate and
batch, or one of them wrong by 4 either way, at the budget for which the rate is tuned and at three times that. B stays
B_0, so equal samples are equal time. All contenders train the same trainings with the same luck:

- fixed: the script's rate, no guard
- guard: the script's rate, with the guard of `lr: decide`
- rule: linear decay, with the guard
- network: the same, corrected
- oracle: linear decay or the script's rate, times the constant that turns out best for each training, from the start

The figures are geometric means of ratios to the rule, with 95 % intervals over trainings.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.report.page import RESULTS, draw, markdown, update_page, where, write_csv
from benchmarks.studies.rate_agent import FOLLOW, Array, RateTraining, Trainings, train
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.sim.cluster.fitted import FITTED
from dynamix_ps.sim.cluster.parameters import Parameters, join
from dynamix_ps.sim.cluster.randomise_workloads import draw_workloads
from dynamix_ps.sim.scenario.parts import WorkloadName

HELD_OUT: tuple[tuple[WorkloadName, ...], ...] = (
    ("cnn-sgd", "cnn-adam"), ("resnet-sgd", "resnet-adam"), ("gpt-adamw",),
)  # fmt: skip
WRONG = {
    "tuned": (1.0, 1.0),
    "rate / 4": (0.25, 1.0),
    "rate x 4": (4.0, 1.0),
    "B_0 / 4": (1.0, 4.0),
    "B_0 x 4": (1.0, 0.25),
}
LONGER = (1.0, 3.0)  # times the budget
SEEDS, SEED = 20, 7_000_000  # trainings of networks use small seeds
CONSTANTS = tuple(2.0**octave for octave in range(-3, 4))  # that the oracle tries
RESAMPLES = 2000
FIXED, GUARD, RULE, NETWORK, ORACLE = "fixed", "guard", "rule", "network", "oracle"


class Ends(NamedTuple):
    """Of every training, at the end of its budget: excess loss, that of averaged weights, whether it is dead."""

    loss: Array
    averaged: Array
    dead: NDArray[np.bool_]


class Case(NamedTuple):
    workload: WorkloadName
    wrong: str
    longer: float


CASES = tuple(Case(name, wrong, longer) for name in FITTED for wrong in WRONG for longer in LONGER)


def clusters(cases: Sequence[Case], seeds: int, n_workers: int = 3) -> Parameters:
    """`seeds` trainings of every case; the n-th of each workload has the same cluster and spectrum in all cases."""
    return join([_of_case(case, seeds, n_workers) for case in cases])


def _of_case(case: Case, seeds: int, n_workers: int) -> Parameters:
    rng = np.random.default_rng([SEED, list(FITTED).index(case.workload)])
    drawn = draw_workloads(rng, seeds, n_workers, names=(case.workload,))
    rate, batch = WRONG[case.wrong]
    tuned = drawn.reference_batch * np.float32(batch)
    budget = tuned * np.float32(case.longer * FITTED[case.workload].iterations)
    script_rate = np.full(seeds, rate, dtype=np.float32)
    return dataclasses.replace(drawn, script_rate=script_rate, tuned_batch=tuned, budget_samples=budget)


def ends(parameters: Parameters, decide: Callable[[Trainings, Array], None] | None, first: float = 1.0) -> Ends:
    """Train all to the end of their budgets.

    Args:
        decide: what to do after a window; none: the rate stays, without guard.
        first: correction at the start.
    """
    rng = np.random.default_rng(SEED)
    trainings = Trainings(parameters, rng, guarded=decide is not None)
    trainings.correction[:] = first
    simulator = trainings.simulator
    nothing = np.zeros(parameters.environments)
    found = Ends(nothing.copy(), nothing.copy(), nothing > 0)
    running = np.ones(parameters.environments, dtype=bool)
    while running.any():
        rows, _ = trainings.window()
        for array, now in zip(
            found, (simulator.excess, simulator.workload.averaged, simulator.workload.dead), strict=True
        ):
            array[running] = now[running]
        running &= ~simulator.truncated
        if decide is not None:
            decide(trainings, rows)
    return found


def by_rule(trainings: Trainings, rows: Array) -> None:
    trainings.decide(np.full(len(rows), FOLLOW))


def by_guard(trainings: Trainings, rows: Array) -> None:
    """The rate stays."""


def by_constant(trainings: Trainings, rows: Array) -> None:
    """The script's rate times the correction, as soon as the limits let it."""
    trainings.decide(np.full(len(rows), FOLLOW), decays=False)


def by(network: ActorCritic) -> Callable[[Trainings, Array], None]:
    return lambda trainings, rows: trainings.decide(network.choose(rows, explore=False))


def best(tried: Sequence[Ends]) -> Ends:
    """Of every training the one whose averaged weights end best."""
    chosen = np.argmin([one.averaged for one in tried], axis=0)
    where = (chosen, np.arange(len(chosen)))
    loss, averaged, dead = (np.array([getattr(one, name) for one in tried])[where] for name in Ends._fields)
    return Ends(loss, averaged, dead)


Task = tuple[str, tuple[WorkloadName, ...]]  # a contender on these workloads
TASKS: tuple[Task, ...] = (
    *((name, tuple(FITTED)) for name in (FIXED, GUARD, RULE, ORACLE)),
    *((NETWORK, group) for group in HELD_OUT),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="too small for meaningful figures; shows that it works")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no further part after this time")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    seeds, training = (4, RateTraining(total_windows=30_000)) if args.quick else (SEEDS, RateTraining())
    file, began_s = args.out / "rate-policy.csv", time.monotonic()
    rows = read(file)
    for task in missing(rows):
        if time.monotonic() - began_s < args.limit_s:
            rows += measured(task, seeds, training)
            write_csv(file, rows)
            print(*task, flush=True)
    if left := len(missing(rows)):
        print(f"{left} parts are left; the same command goes on", flush=True)
        return
    contenders = {name: ends_of(rows, name) for name in (FIXED, GUARD, RULE, ORACLE, NETWORK)}
    command = "python -m benchmarks.studies.rate_policy" + " --quick" * args.quick
    draw(args.out / "rate-policy.png", lambda figure: _draw(figure, contenders, seeds))
    block = f"`{command}` on {where()}. Simulated.\n\n{markdown(_table(contenders, seeds))}\n"
    update_page(args.out / "rate-policy.md", block)
    print(block)


def read(file: Path) -> list[dict[str, str]]:
    """The trainings that have ended; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def missing(rows: Sequence[dict[str, str]]) -> list[Task]:
    """What is still to be done."""
    done = {(row["contender"], row["workload"]) for row in rows}
    return [(name, group) for name, group in TASKS if (name, group[0]) not in done]


def measured(task: Task, seeds: int, training: RateTraining) -> list[dict[str, str]]:
    """A contender's trainings, one row each. The network is trained on all other workloads before."""
    name, group = task
    cases = [case for case in CASES if case.workload in group]
    parameters = clusters(cases, seeds)
    if name == ORACLE:
        found = best([ends(parameters, how, c) for how in (by_rule, by_constant) for c in CONSTANTS])
    elif name == NETWORK:
        others = tuple(other for other in FITTED if other not in group)
        found = ends(parameters, by(train(others, training, lambda line: print(line, flush=True))))
    else:
        found = ends(parameters, {FIXED: None, GUARD: by_guard, RULE: by_rule}[name])
    return [
        {
            "contender": name, "workload": case.workload, "wrong": case.wrong, "budget": f"{case.longer:g}",
            "training": str(seed), "excess_loss": f"{found.loss[index * seeds + seed]:.5g}",
            "averaged": f"{found.averaged[index * seeds + seed]:.5g}",
            "dead": str(int(found.dead[index * seeds + seed])),
        }
        for index, case in enumerate(cases)
        for seed in range(seeds)
    ]  # fmt: skip


def ends_of(rows: Sequence[dict[str, str]], name: str) -> Ends:
    """A contender's trainings in the order of CASES."""
    mine = {
        (row["workload"], row["wrong"], row["budget"], int(row["training"])): row
        for row in rows
        if row["contender"] == name
    }
    seeds = 1 + max(training for *_, training in mine)
    ordered = [mine[case.workload, case.wrong, f"{case.longer:g}", seed] for case in CASES for seed in range(seeds)]
    loss, averaged, dead = (
        np.array([float(row[column]) for row in ordered]) for column in ("excess_loss", "averaged", "dead")
    )
    return Ends(loss, averaged, dead > 0)


def ratio(mine: Array, its: Array) -> tuple[float, float, float]:
    """Geometric mean of ratios, with its 95 % interval over trainings."""
    logs = np.log(mine / its)
    drawn = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def _table(contenders: dict[str, Ends], seeds: int) -> list[dict[str, str]]:
    """A row for each thing that is wrong, and one for each workload."""
    rule = contenders[RULE]
    kinds: dict[str, Callable[[Case], bool]] = {wrong: lambda case, w=wrong: case.wrong == w for wrong in WRONG}  # type: ignore[misc]
    kinds |= {f"`{name}`": lambda case, n=name: case.workload == n for name in FITTED}  # type: ignore[misc]
    kinds["all"] = lambda case: True
    table = []
    for title, chosen in kinds.items():
        which = np.repeat([chosen(case) for case in CASES], seeds)
        if not which.any():
            continue
        row = {"trainings": title}
        for name in (FIXED, GUARD, NETWORK, ORACLE):
            one = contenders[name]
            middle, low, high = ratio(one.averaged[which], rule.averaged[which])
            raw, _, _ = ratio(one.loss[which], rule.loss[which])
            row[name] = f"{middle:.2f} [{low:.2f}, {high:.2f}], {raw:.2f}"
        row["dead: fixed, guard, rule, network"] = ", ".join(
            str(int(contenders[name].dead[which].sum())) for name in (FIXED, GUARD, RULE, NETWORK)
        )
        table.append(row)
    return table


def _draw(figure: Any, contenders: dict[str, Ends], seeds: int) -> None:
    figure.set_size_inches(10, 4)
    axes = figure.subplots()
    rule = contenders[RULE]
    for name in (FIXED, GUARD, NETWORK, ORACLE):
        shown = [
            ratio(contenders[name].averaged[which], rule.averaged[which])[0]
            for which in (np.repeat([case.wrong == wrong for case in CASES], seeds) for wrong in WRONG)
        ]
        axes.plot(list(WRONG), shown, marker="o", label=name)
    axes.axhline(1.0, color="#777777", linewidth=1)
    axes.set(yscale="log", ylabel="loss of averaged weights at the end, over the rule's", title="Simulated")
    axes.legend()


if __name__ == "__main__":
    main()
