"""Fits the workloads of the simulator (dynamix_ps/sim/cluster/fitted.py) to real trainings; how well they fit.

    python -m benchmarks.studies.rate_surrogate

MEASURED has what 309 real trainings of five workloads gave, four seeds each: the samples that a schedule took to the
test loss that the tuned fixed rate has at 55 % of the budget, over those of the tuned fixed rate itself. The learning
rate followed B by the rule `sqrt`. rate-surrogate-trainings.csv has the test loss of ten further ones, one seed, with
that of averaged weights. The fit is a random search that narrows down; its numbers are copied into fitted.py by hand.
Weights and priors are chosen by us.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.study import Study, run_study
from dynamix_ps.sim.cluster.fitted import FITTED, Fitted
from dynamix_ps.sim.cluster.quadratic import averaged_loss, noise_batches, power_law, trained, untrained
from dynamix_ps.sim.cluster.workload_training import DEAD
from dynamix_ps.sim.scenario.parts import WorkloadName

Array = NDArray[np.float64]
NEVER = math.inf
STEPS = 25  # of a training, with constant rate and batch in each
AT = 0.55  # of the budget
RATIO_ERROR = 0.06  # of the logarithm of a measured ratio
LOSS_ERROR, LOSS_WEIGHT = 0.03, 15.0  # of the loss of one evaluation, relative; evaluations count as so many ratios
FROM = 0.35  # of the budget; before, the average of weights depends on how it begins
TRAININGS = Path(__file__).parents[1] / "results" / "rate-surrogate-trainings.csv"
CANDIDATES, ROUNDS, KEPT, EACH = 1500, 6, 60, 8
HIGHEST = 1e6  # loss; a training that diverges stays there


class Schedule(NamedTuple):
    """Learning rate over the tuned one, and B over the tuned one, by the part of the training that is done."""

    title: str
    rate: Callable[[float], float]
    batch: Callable[[float], float] = lambda done: 1.0


TUNED = Schedule("tuned", lambda done: 1.0)
LINEAR = Schedule("linear decay", lambda done: max(1 - done - 0.5 / STEPS, 0.01))
SCHEDULES = (
    Schedule("fixed rate x1/4", lambda done: 0.25),
    Schedule("fixed rate x4", lambda done: 4.0),
    LINEAR,
    Schedule("half B in the first quarter", lambda done: 1.0, lambda done: 0.5 if done < 0.25 else 1.0),
    Schedule("twice B from half on", lambda done: 1.0, lambda done: 1.0 if done < 0.5 else 2.0),
)


class Measured(NamedTuple):
    """Ratios of samples by SCHEDULES (NaN: not measured), and what else is known of the real training."""

    ratios: tuple[float, ...]
    dies: bool  # at four times the tuned rate
    noise_batches: float  # noise scale over B at AT, about
    noise_error: float  # of its logarithm


MEASURED: dict[WorkloadName, Measured] = {
    "cnn-sgd": Measured((NEVER, NEVER, 0.98, 0.64, 0.98), True, 1.3, 0.3),
    "cnn-adam": Measured((NEVER, NEVER, 0.93, 0.88, 0.99), False, 1.3, 0.3),
    "resnet-sgd": Measured((1.15, 1.27, 0.94, 0.92, 1.01), False, 2.0, 1.0),
    "resnet-adam": Measured((1.38, 1.30, 0.95, 0.89, 0.98), False, 2.0, 1.0),
    "gpt-adamw": Measured((1.46, NEVER, 1.05, math.nan, 1.02), False, 2.0, 1.0),
}


class Curve(NamedTuple):
    """Test loss of one training."""

    schedule: Schedule
    parts: Array  # of the budget
    loss: Array
    averaged: Array


def curves(name: WorkloadName) -> list[Curve]:
    """Real trainings of a workload."""
    with TRAININGS.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["workload"] == name and float(row["budget_part"]) >= FROM]
    found = []
    for schedule in (TUNED, LINEAR):
        mine = [row for row in rows if row["schedule"] == schedule.title]
        columns = (np.array([float(row[column]) for row in mine]) for column in ("budget_part", "loss", "averaged"))
        found.append(Curve(schedule, *columns))
    return found


class Course(NamedTuple):
    """Of candidates, (STEPS + 1, candidates) each."""

    loss: Array
    averaged: Array
    noise_batches: Array


def course(rows: Array, like: Fitted, schedule: Schedule) -> Course:
    """Trainings of candidates, rows of steepest, tail, floor, floor_tail and rate_power, under the rule `sqrt`."""
    spectrum = power_law(*rows[:, :4].T)
    moments, ones = untrained(spectrum), np.ones(len(rows))
    losses, averages, noises = [ones], [ones], [noise_batches(spectrum, moments)]
    for step in range(STEPS):
        batch = schedule.batch(step / STEPS)
        rate = np.full(len(rows), schedule.rate(step / STEPS) * math.sqrt(batch))
        if like.adaptive:
            rate = rate * np.sqrt((1 + noises[-1]) / (1 + noises[-1] / batch))
        rate = rate ** rows[:, 4]
        moments = trained(spectrum, moments, rate, batch * ones, np.full(len(rows), like.iterations / STEPS / batch))
        losses.append(np.minimum(moments.loss, HIGHEST))
        averages.append(np.minimum(averaged_loss(spectrum, moments, rate), HIGHEST))
        noises.append(noise_batches(spectrum, moments))
    return Course(*(np.array(values) for values in (losses, averages, noises)))


def arrivals(loss: Array, level: Array) -> Array:
    """The part of the budget after which each candidate's loss, (STEPS + 1, candidates), is at its level."""
    below = loss[1:] <= level
    first = below.argmax(axis=0)
    columns = np.arange(loss.shape[1])
    before, after = (np.log(loss[first + more, columns]) for more in (0, 1))
    within = (before - np.log(level)) / np.maximum(before - after, 1e-12)
    return np.where(below.any(axis=0), (first + within) / STEPS, NEVER)


class Fit(NamedTuple):
    """How candidates compare with a real training."""

    cost: Array
    ratios: Array  # (SCHEDULES, candidates)
    dies: NDArray[np.bool_]
    noise_batches: Array  # at AT
    averaged: Array  # over the weights' loss beyond the last one, at the end of the tuned training
    off: Array  # relative error of a loss, root of the mean square


def loss_errors(rows: Array, like: Fitted, real: Sequence[Curve]) -> Array:
    """Root of the mean square of relative errors, for the first and last loss that fit best; (candidates,)."""
    excess, losses = [], []
    for curve in real:
        found = course(rows, like, curve.schedule)
        for values, measured in ((found.loss, curve.loss), (found.averaged, curve.averaged)):
            done = np.arange(STEPS + 1) / STEPS
            excess.append(np.array([np.interp(curve.parts, done, one) for one in values.T]))
            losses.append(measured)
    at, measured = np.minimum(np.concatenate(excess, axis=1), DEAD), np.concatenate(losses)
    terms = np.stack([at, np.ones_like(at)], axis=-1) / measured[:, None]  # of the relative loss: fall and last loss
    normal = np.einsum("cni,cnj->cij", terms, terms) + 1e-9 * np.eye(2)
    scales = np.linalg.solve(normal, terms.sum(axis=1)[..., None])
    predicted: Array = np.maximum(terms @ np.maximum(scales, 0), 0)[..., 0]  # over what was measured
    off: Array = np.sqrt(((predicted - 1) ** 2).mean(axis=1))
    return off


def compared(rows: Array, like: Fitted, real: Measured, trainings: Sequence[Curve]) -> Fit:
    """The costs are sums of squares of errors, each in units of what is expected."""
    tuned = course(rows, like, TUNED)
    at = AT * STEPS
    level = tuned.loss[int(at)] ** (1 - at % 1) * tuned.loss[int(at) + 1] ** (at % 1)
    averaged = tuned.averaged[-1] / tuned.loss[-1]
    noise = tuned.noise_batches[round(at)]
    cost = (np.log(noise / real.noise_batches) / real.noise_error) ** 2
    cost = cost + 0.3 * (((rows[:, 1] - 0.5) / 0.5) ** 2 + rows[:, 3] ** 2)
    off = loss_errors(rows, like, trainings)
    cost = cost + LOSS_WEIGHT * (off / LOSS_ERROR) ** 2
    ratios, died = [], np.zeros(len(rows), dtype=bool)
    for schedule, measured in zip(SCHEDULES, real.ratios, strict=True):
        loss = course(rows, like, schedule).loss
        ratio = arrivals(loss, level) / AT
        ratios.append(ratio)
        dies = loss.max(axis=0) > DEAD
        died |= dies
        if math.isnan(measured):
            continue
        short = np.maximum(np.log(loss[-1] / level), 0)  # of the level, at the end
        if measured == NEVER:
            missed = np.where(np.isinf(ratio), 0, (1 / AT - np.where(np.isinf(ratio), 1, ratio)) + 0.1)
        else:
            found = np.where(np.isinf(ratio), 1 / AT, ratio) / measured
            missed = np.abs(np.log(found)) + short
        cost = cost + np.minimum(missed / RATIO_ERROR, 30) ** 2
    cost = cost + 20 * (died != real.dies)
    return Fit(cost, np.array(ratios), died, noise, averaged, off)


LOW = np.array([0.02, 0.0, 0.003, -1.0, 0.2])
HIGH = np.array([1.6, 1.5, 0.4, 1.5, 1.0])
LOGARITHMIC = np.array([True, False, True, False, False])
STEP = np.array([0.25, 0.12, 0.3, 0.15, 0.08])  # of the search, in the first round


def fitted(
    like: Fitted,
    real: Measured,
    trainings: Sequence[Curve],
    rng: np.random.Generator,
    candidates: int = CANDIDATES,
) -> Fitted:
    """The numbers that fit best."""
    low, high = (np.where(LOGARITHMIC, np.log(np.where(LOGARITHMIC, edge, 1)), edge) for edge in (LOW, HIGH))

    def rows(points: Array) -> Array:
        return np.where(LOGARITHMIC, np.exp(np.where(LOGARITHMIC, points, 0)), points)

    points = rng.uniform(low, high, (candidates, len(LOW)))
    cost = compared(rows(points), like, real, trainings).cost
    for round_ in range(ROUNDS):
        best = np.argsort(cost)[:KEPT]
        around = np.repeat(points[best], EACH, axis=0)
        tried: Array = np.clip(around + STEP * 0.75**round_ * rng.standard_normal(around.shape), low, high)
        points = np.concatenate([points[best], tried])
        cost = np.concatenate([cost[best], compared(rows(tried), like, real, trainings).cost])
    steepest, tail, floor, floor_tail, power = (float(f"{value:.3g}") for value in rows(points[cost.argmin()]))
    return Fitted(steepest, tail, floor, floor_tail, power, like.adaptive, like.iterations)


def row_of(one: Fitted) -> Array:
    return np.array([[one.steepest, one.tail, one.floor, one.floor_tail, one.rate_power]])


def measure(quick: bool) -> Study:
    """Fit every workload and compare the numbers of fitted.py with the measured ones."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    table = []
    for name, real in MEASURED.items():
        trainings = curves(name)
        found = fitted(FITTED[name], real, trainings, rng, 100 if quick else CANDIDATES)
        print(f'    "{name}": {found},', flush=True)
        fit = compared(row_of(FITTED[name]), FITTED[name], real, trainings)
        cells = {}
        for schedule, measured, ratio in zip(SCHEDULES, real.ratios, fit.ratios[:, 0], strict=True):
            rows.append({"workload": name, "schedule": schedule.title, "measured": measured, "surrogate": ratio})
            cells[schedule.title] = f"{_shown(measured)} / {_shown(ratio)}"
        table.append(
            {
                "workload": f"`{name}`",
                **cells,
                "dies at x4": " / ".join("yes" if dies else "no" for dies in (real.dies, fit.dies[0])),
                "error of a loss": f"{100 * fit.off[0]:.1f} %",
                "noise scale over B": f"{fit.noise_batches[0]:.1f}",
            }
        )
    return Study(rows, table, _draw)


def _shown(ratio: float) -> str:
    return "?" if math.isnan(ratio) else "never" if math.isinf(ratio) else f"{ratio:.2f}"


def _draw(figure: Any) -> None:
    figure.set_size_inches(13, 3.6)
    for axes, (name, one) in zip(figure.subplots(1, len(FITTED)), FITTED.items(), strict=True):
        for schedule in (TUNED, *SCHEDULES[:3]):
            loss = course(row_of(one), one, schedule).loss[:, 0]
            axes.plot(np.arange(STEPS + 1) / STEPS, np.minimum(loss, DEAD), label=schedule.title)
        axes.set(title=name, yscale="log", xlabel="part of the budget")
        axes.grid(color="#e5e5e5")
    figure.axes[0].set_ylabel("loss over that at the start")
    figure.axes[0].legend(fontsize="small")


if __name__ == "__main__":
    run_study("rate_surrogate", __doc__, measure)
