"""The simulator's training (dynamix_ps/sim/cluster/learning.py), fitted to rehearsed runs of the language model.

Every fixed size of the study of language models (gpt.py) learns the same text. Its test losses, per token, and the
noise scale that was measured beside the critical batch give the seven numbers of FITTED. The learning-rate rule is
AdaScale's, although the runs had the square root of the batch with AdamW: with two of the simulator's rules the fit is
about as good and far better than with the others, and of these two it alone has no batch at which training diverges.
The warm-up and the cosine are left out, as they come after the same tokens whatever the size.

Expected errors and priors are chosen by us. Runs with even seeds are for the fit, the others for the check. Pure, but
for the reading of tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from benchmarks.report.page import RESULTS
from benchmarks.studies.gpt_cells import FIRST_SIZE, MOST, STATICS, SWEEP, TARGETS, WORKERS
from benchmarks.studies.kept_rows import read_rows
from benchmarks.studies.rehearsed_cells import Name, outcome_of
from benchmarks.workloads.text import CONTEXT, TRAIN_SAMPLES
from dynamix_ps.rehearsal.outcome import Outcome
from dynamix_ps.run_record.evaluations import first_reached
from dynamix_ps.sim.calibration.fitting import Array, Unknown, fitted_values, with_values
from dynamix_ps.sim.cluster import learning
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Bounds, Training

Rule = Literal["none", "linear", "sqrt", "adascale"]
RULES: tuple[Rule, ...] = get_args(Rule)
RULE: Rule = "adascale"

REHEARSED = RESULTS / "gpt" / "cells.csv"
CRITICAL = RESULTS / "critical-batch.csv"
TOKENS = float(TRAIN_SAMPLES * CONTEXT)  # of a whole rehearsed training
SIZES = {WORKERS * size: name for name, size in sorted((STATICS | SWEEP).items(), key=lambda one: one[1])}
LEVELS = tuple(round(2.9 - 0.1 * step, 1) for step in range(11))  # test losses, nats per byte
PARTS = 16  # evaluations of a training
LONGEST = 4  # trainings; a loss that takes longer counts as NEVER of them
NEVER = 6.0
SMALL_STEPS = 4  # of progress, from one evaluation to the next
SAMPLES, LAST, NOISE = 0.06, 0.03, 0.5  # expected errors of logarithms: tokens to a loss, loss at the end, noise scale
NOISE_BATCH = 1024  # tokens of an iteration of the trainings in CRITICAL

FITTED = {
    "tuning": Unknown(0.7, 0.5, 0.05, 1.6, log=True),
    "noise_scale": Unknown(2000.0, 1.0, 10.0, 1e5, log=True),
    "noise_growth": Unknown(0.5, 0.5, 0.0, 5.0),
    "progress_scale": Unknown(10.0, 1.5, 0.1, 1e4, log=True),
    "decay": Unknown(0.3, 0.7, 0.02, 3.0, log=True),
    "first_loss": Unknown(3.8, 0.2, 3.0, 5.6, log=True),
    "last_loss": Unknown(0.7, 0.7, 0.0, 1.6),
}


def rehearsed_runs(file: Path = REHEARSED) -> dict[Name, Outcome]:
    """All runs of the study of language models."""
    return {
        Name(row["workload"], row["scenario"], row["contender"], int(row["seed"])): outcome_of(row)
        for row in read_rows(file)
    }


def halves(runs: Mapping[Name, Outcome]) -> tuple[dict[Name, Outcome], dict[Name, Outcome]]:
    """The runs for the fit, and those for the check."""
    even, odd = ({name: run for name, run in runs.items() if name.seed % 2 == part} for part in (0, 1))
    return even, odd


def mean_losses(runs: Mapping[Name, Outcome]) -> dict[int, Array]:
    """By tokens of an iteration: test loss after each of PARTS parts of the tokens, mean over runs of this size."""
    at = TRAIN_SAMPLES * np.arange(1, PARTS + 1) / PARTS
    found: dict[int, list[Array]] = {}
    for name, run in runs.items():
        for size in (size for size, static in SIZES.items() if static == name.contender):
            samples = [one.samples for one in run.curve]
            found.setdefault(size, []).append(np.interp(at, samples, [one.values["loss"] for one in run.curve]))
    return {size: np.mean(curves, axis=0) for size, curves in sorted(found.items())}


def measured_noise(file: Path = CRITICAL) -> dict[float, float]:
    """Noise scale in tokens, median over seeds, by tokens before."""
    found: dict[float, list[float]] = {}
    for row in read_rows(file):
        found.setdefault(float(row["sequences"]) * CONTEXT, []).append(float(row["noise_scale"]) * CONTEXT)
    return {tokens: float(np.median(values)) for tokens, values in found.items()}


def fit(curves: Mapping[int, Array], noise: Mapping[float, float], rule: Rule = RULE) -> Training:
    """The training that fits best to these losses by tokens of an iteration."""
    sizes = list(curves)
    batches = np.array([*sizes, NOISE_BATCH], dtype=np.float64)
    base = _parameters(_training({}), rule)
    reached = {size: tokens_to(curve) for size, curve in curves.items()}
    noise_at = np.array(list(noise)) / TOKENS * PARTS

    def residuals(values: Mapping[str, float]) -> Array:
        found, noises = course(with_values(base, values), batches)
        parts = []
        for column, size in enumerate(sizes):
            known = np.isfinite(reached[size])
            tokens = np.nan_to_num(tokens_to(found[:, column]), nan=NEVER)
            parts.append(np.log(tokens / reached[size])[known] / SAMPLES)
            parts.append(np.log(found[PARTS - 1 : PARTS, column] / curves[size][-1]) / LAST)
        at = np.arange(1, len(noises) + 1)
        parts.append(np.log(np.interp(noise_at, at, noises[:, -1]) / list(noise.values())) / NOISE)
        return np.concatenate(parts)

    return _training({name: float(f"{value:.4g}") for name, value in fitted_values(FITTED, residuals).items()})


def error(training: Training, curves: Mapping[int, Array], rule: Rule = RULE) -> float:
    """Of the tokens to a loss: root of the mean square of logarithms, over sizes and the LEVELS that each reaches."""
    found, _ = course(_parameters(training, rule), np.array(list(curves), dtype=np.float64))
    ratios = [
        np.nan_to_num(tokens_to(losses), nan=NEVER) / tokens_to(curve)
        for losses, curve in zip(found.T, curves.values(), strict=True)
    ]
    return float(np.sqrt(np.nanmean(np.log(np.concatenate(ratios)) ** 2)))


def course(parameters: Parameters, batches: Array) -> tuple[Array, Array]:
    """Test loss and noise scale of each batch after each of PARTS parts, for LONGEST times the tokens, without luck."""
    step = TOKENS / PARTS / SMALL_STEPS / batches  # iterations
    progress, losses, noises = np.zeros(len(batches), dtype=np.float32), [], []
    for _ in range(LONGEST * PARTS):
        for _ in range(SMALL_STEPS):
            noise = learning.noise_scale(parameters, learning.excess_loss(parameters, progress))
            progress = np.maximum(progress + step * learning.step_progress(parameters, noise, batches), 0)
        excess = learning.excess_loss(parameters, progress)
        losses.append(learning.training_loss(parameters, excess))
        noises.append(learning.noise_scale(parameters, excess))
    return np.array(losses, dtype=np.float64), np.array(noises, dtype=np.float64)


def tokens_to(losses: Sequence[float] | Array, levels: Sequence[float] = LEVELS) -> Array:
    """When a training first has each loss, in trainings of TOKENS, as rehearsed runs count it; NaN: never.

    Args:
        losses: after each of PARTS parts, and on.
    """
    points = [(0.0, (number + 1) / PARTS, float(loss)) for number, loss in enumerate(losses)]
    found = [first_reached(points, level, higher_is_better=False) for level in levels]
    return np.array([np.nan if one is None else one.samples for one in found])


def accuracy_at(training: Training, loss: float) -> float:
    """What the simulator calls accuracy where the test loss is this: the part of the loss that has gone."""
    return (training.first_loss - loss) / (training.first_loss - training.last_loss)


def noise_at(training: Training, loss: float) -> float:
    """Noise scale in tokens where the test loss is this."""
    return float(training.noise_scale * (1 - accuracy_at(training, loss)) ** -training.noise_growth)


def _parameters(training: Training, rule: Rule) -> Parameters:
    """Of one environment, with the first sizes of the study."""
    bounds = Bounds(min=CONTEXT, max=MOST // WORKERS)
    return parameters_of(
        (
            Scenario(
                name="fit",
                lr_rule=rule,
                training=training,
                batch=bounds,
                initial_batch=FIRST_SIZE,
                target_accuracy=accuracy_at(training, TARGETS[-1].value),
            ),
        )
    )


def _training(values: Mapping[str, float]) -> Training:
    """Loss is all that counts: what the simulator calls accuracy is the part of it that has gone."""
    others = {"chance": 0.0, "best_accuracy": 1.0, "gap": 0.0, "data_samples": TOKENS}
    return Training.model_validate({**others, **values})
