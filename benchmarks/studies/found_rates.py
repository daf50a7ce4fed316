"""How far is the rate that `dynamix rehearse --find-rate` suggests from a tuned one, and what does that cost?

    python -m benchmarks.studies.found_rates [--quick] [--limit-s S] [--jobs N]

Six workloads whose rates are tuned (a grid a factor 2 apart), each wrong by 4, by 1/4, and right. The race is the
product's: rate_race.py decides, rate_trial.py changes the steps of an optimizer. Then the workload trains in one
process with the suggested rate, to the test loss that the tuned rate reaches after four fifths of a pass over the data.
Samples count, those of the race too. `fashion-mlp` is held out: nothing of the race was chosen by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.report.page import markdown
from benchmarks.studies.kept_rows import Row
from benchmarks.studies.study import Report, run_kept_study
from benchmarks.suite.intervals import geometric_mean, paired_ratio
from benchmarks.suite.workloads import Workload, load_workloads
from benchmarks.workloads import data, models, objective
from benchmarks.workloads.torch_samples import SampleSet
from dynamix_ps.rehearsal.rate_race import FRACTION, JUDGED, RIGHT, TRAINED, RateRace
from dynamix_ps.rehearsal.rate_trial import RateTrial
from dynamix_ps.run_record.evaluations import first_reached

_AGENT = load_workloads(Path(__file__).with_name("agent") / "workloads.yaml")
HELD_OUT = "fashion-mlp"
WORKLOADS: Mapping[str, Workload] = _AGENT | {
    HELD_OUT: _AGENT["fashion-cnn"].model_copy(update={"model": "mlp", "optimizer": "adam", "lr": {"adam": 0.016}})
}
WORKERS = 8
ERRORS = {"x4": 2, "right": 0, "x1/4": -2}  # octaves of the script's rate over the tuned one
SEEDS = (1, 2, 3, 4, 5)
TARGET_AT = 0.8  # of a pass at the tuned rate
MOST = 2.0  # passes that a training has to reach the target
BAR = 1.25

Curve = list[tuple[float, float, float]]  # seconds (none), samples, test loss


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload with one seed."""

    workload: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.workload}, seed {self.seed}"

    @property
    def key(self) -> str:
        return f"{self.workload}-{self.seed}-{TRAINED}-{JUDGED}-{FRACTION}"


class Training:
    """Of a workload, from its first weights on."""

    def __init__(self, cell: Cell) -> None:
        self.workload = WORKLOADS[cell.workload]
        self.train, self.test, shape, classes = _tensors(cell.workload)
        torch.manual_seed(cell.seed)
        self.model = models.make_model(self.workload.model, shape, classes)
        self._order = torch.randperm(len(self.train[1]), generator=torch.Generator().manual_seed(cell.seed))
        self.batch = WORKERS * self.workload.batch

    @property
    def rate(self) -> float:
        """The tuned one."""
        return self.workload.lr[self.workload.optimizer]

    def steps(self, rate: float, batch: int) -> Iterator[float]:
        """Losses before each step, without end. An infinite one ends it."""
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "sgd": lambda weights: torch.optim.SGD(weights, rate, momentum=0.9),
            "adam": lambda weights: torch.optim.Adam(weights, rate),
            "adamw": lambda weights: torch.optim.AdamW(weights, rate),
        }
        optimizer = kinds[self.workload.optimizer](self.model.parameters())
        place = 0
        while True:
            chosen = self._order[torch.arange(place, place + batch) % len(self._order)]
            place += batch
            optimizer.zero_grad()
            loss = objective.mean_loss(self.model(self.train[0][chosen]).float(), self.train[1][chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            yield loss.item()
            if not math.isfinite(loss.item()):
                return
            optimizer.step()

    @torch.no_grad()
    def test_loss(self, model: torch.nn.Module) -> float:
        return objective.mean_loss(model(self.test[0]).float(), self.test[1]).item()


@cache
def _tensors(name: str) -> tuple[Any, Any, Any, int]:
    """Of a workload, for training and for tests; the shape of an input, and the number of classes."""
    workload = WORKLOADS[name]
    found = data.load(workload.data, None)
    train, test = (SampleSet(part).tensors for part in (found.train, found.test.first(workload.test_samples)))
    return tuple(one[: workload.train_samples] for one in train), test, found.shape, found.classes


def race(cell: Cell, error: int) -> tuple[RateRace, int]:
    """A race where the script's rate is so many octaves from the tuned one, and the samples that it takes."""
    found, samples = RateRace(), 0
    while octaves := found.missing():
        for octave in octaves:
            loss, taken = _trial(cell, octave + error)
            found.add(octave, loss)
            samples += taken
    return found, samples


@cache
def _trial(cell: Cell, octave: int) -> tuple[float, int]:
    """What a rate comes to, so many octaves from the tuned one, and the samples that it takes."""
    training, iteration, losses = Training(cell), 0, list[float]()
    hooks = RateTrial(2.0**octave, lambda: iteration, lambda *_, **__: None, lambda: None).install()
    batch = training.batch // FRACTION
    try:
        for iteration, loss in enumerate(training.steps(training.rate, batch)):
            losses.append(loss)
            if iteration == TRAINED + JUDGED:
                break
    finally:
        for hook in hooks:
            hook.remove()
    judged = losses[TRAINED + 1 :] if math.isfinite(losses[-1]) else [math.inf]
    return float(np.mean(judged)), len(losses) * batch


def curve_of(cell: Cell, octaves: float, passes: float, target: float | None = None) -> Curve:
    """Test losses of averaged weights at the tuned rate times 2**octaves, up to the target if there is one."""
    training, curve = Training(cell), Curve()
    workload, samples = training.workload, 0
    averaging = get_ema_multi_avg_fn(workload.ema_decay or 0.0)  # type: ignore[no-untyped-call]
    averages = AveragedModel(training.model, multi_avg_fn=averaging)
    for _ in training.steps(training.rate * 2.0**octaves, training.batch):
        if samples:
            averages.update_parameters(training.model)
        samples += training.batch
        if samples // workload.eval_samples > len(curve):
            curve.append((0.0, samples, training.test_loss(averages)))
            if samples >= passes * workload.train_samples or (target and first_reached(curve[:-1], target, False)):
                break
    return curve


def run(cell: Cell) -> list[Row]:
    """A row for each error of the rate."""
    torch.set_num_threads(1)
    tuned = curve_of(cell, 0.0, 1.0)
    place = round(TARGET_AT * len(tuned)) - 1
    target = float(np.mean([loss for *_, loss in tuned[place - 1 : place + 2]]))
    reference = first_reached(tuned, target, False)
    assert reference is not None, "the tuned rate defines the target"
    needed = {0.0: reference.samples}
    rows = []
    for name, error in ERRORS.items():
        found, of_race = race(cell, error)
        suggested = found.found()
        assert suggested is not None, f"{cell.title}: every rate is broken"
        rate = float(error) if suggested.is_right else error + suggested.octaves
        if rate not in needed:
            reached = first_reached(curve_of(cell, rate, MOST, target), target, False)
            needed[rate] = reached.samples if reached else math.inf
        rows.append(
            {
                "workload": cell.workload,
                "seed": cell.seed,
                "script_rate": name,
                "winner_octaves": f"{error + suggested.octaves:.3f}",
                "rates_tried": len(found.losses),
                "race_samples": of_race,
                "rate_octaves": f"{rate:.3f}",
                "samples": f"{needed[rate]:.0f}",
                "tuned_samples": f"{reference.samples:.0f}",
                "target_loss": f"{target:.4f}",
                "losses": " ".join(f"{octave + error:+d}:{loss:.4f}" for octave, loss in sorted(found.losses.items())),
            }
        )
    return rows


def report(rows: Sequence[Row]) -> Report:
    """One line per workload and error, and what all say together."""
    ran = [workload for workload in WORKLOADS if any(row["workload"] == workload for row in rows)]
    lines = [_Line(workload, name, rows) for workload in ran for name in ERRORS]
    table = [line.cells for line in lines]
    for name in ERRORS:
        mine = [line.logs for line in lines if line.error == name]
        means = (str(geometric_mean(logs) or "-") for logs in zip(*mine, strict=True))
        table.append(dict(zip(table[0], ("all", name, "", *means), strict=True)))
    kept = [one for one in ran if all(line.is_kept for line in lines if line.workload == one)]
    winners = {one: [float(row["winner_octaves"]) for row in rows if row["workload"] == one] for one in ran}
    taught = [one for one in ran if one != HELD_OUT]
    others = [float(np.mean([winners[one] for one in taught if one != left])) for left in taught]
    every = np.array([winners[one] for one in taught])
    told = (
        f"Without `{HELD_OUT}`, winners lie {every.mean():+.2f} octaves from the tuned rates in the mean, with a "
        f"standard deviation of {every.std():.2f}; {np.mean(np.abs(every) < RIGHT):.0%} are within a factor "
        f"{2**RIGHT:.0f}. A correction learned from four of these workloads for the fifth would be {min(others):+.2f} "
        f"to {max(others):+.2f} octaves. x4 and x1/4 both at most {BAR} of tuned, the race counted: {len(kept)} of "
        f"{len(ran)} workloads."
    )
    return Report(f"{told}\n\n{markdown(table)}", lambda figure: _draw(figure, winners), {"table": table})


class _Line:
    """A workload with one error of its rate.

    Attributes:
        logs: by seed, of the samples over those of the tuned rate: of the training, and of race and training.
    """

    def __init__(self, workload: str, error: str, rows: Sequence[Row]) -> None:
        self.workload, self.error = workload, error
        self._rows = [row for row in rows if (row["workload"], row["script_rate"]) == (workload, error)]
        training, races, tuned = (
            np.array([float(row[name]) for row in self._rows]) for name in ("samples", "race_samples", "tuned_samples")
        )
        self._training, self._whole = paired_ratio(training, tuned), paired_ratio(training + races, tuned)
        seeds = [int(row["seed"]) for row in self._rows]
        both = (np.log(used / tuned).tolist() for used in (training, training + races))
        self.logs = tuple(dict(zip(seeds, logs, strict=True)) for logs in both)

    @property
    def is_kept(self) -> bool:
        """Whether the bar is met; there is none for a rate that is right."""
        return not ERRORS[self.error] or self._whole.value <= BAR

    @property
    def cells(self) -> dict[str, str]:
        return {
            "workload": f"`{self.workload}`" + " (held out)" * (self.workload == HELD_OUT),
            "script's rate": self.error,
            "trained at, octaves from tuned": ", ".join(f"{float(row['rate_octaves']):+.1f}" for row in self._rows),
            "training / tuned": str(self._training),
            "race and training / tuned": str(self._whole),
        }


def _draw(figure: Any, winners: Mapping[str, Sequence[float]]) -> None:
    axes = figure.subplots()
    axes.axhspan(-RIGHT, RIGHT, color="0.92")
    for place, found in enumerate(winners.values()):
        axes.plot(place + np.linspace(-0.2, 0.2, len(found)), found, "o", color="C0", alpha=0.6)
    axes.set_xticks(range(len(winners)), winners, rotation=20)
    axes.set_ylabel("winner, octaves from the tuned rate")


def cells(quick: bool) -> list[Cell]:
    """Seed by seed."""
    return [Cell(workload, seed) for seed in SEEDS[: 1 if quick else None] for workload in WORKLOADS]


if __name__ == "__main__":
    run_kept_study("found_rates", __doc__, cells, run, report, simulated=False)
