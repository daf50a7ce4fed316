"""How much an iteration improves the model: the quadratic model of gradient noise. Pure, all shapes (E,).

The progress f of a step is defined in policy/model/efficiency.py; `progress` is the sum of f. The training
script's learning-rate schedule keeps its step at `tuning` times the best one for B_0 while N grows.

The following shapes are common, and chosen by us:
- Excess loss falls as a power law of progress, x = (1 + progress / scale)^-decay.
- N grows as a power of the excess loss, N = N_0 x^-growth (Kaplan et al., arXiv 2001.08361, 5.1, give
  a critical batch as a power of the loss).
- The error beyond the best possible falls as x^power. Large batches generalise worse (arXiv 1609.04836): on the
  test set the part gap * B~ / (B~ + gap_batch) of the learned accuracy is lost. B~ is B smoothed over GAP_MEMORY
  iterations, so the lost part returns when B falls again.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.policy.model import efficiency as model
from dynamix_ps.sim.cluster.parameters import Parameters, Reals

GAP_MEMORY = 500.0  # iterations
PROGRESS_SPREAD = np.float32(0.1)  # standard deviation of a window's progress over its mean


def excess_loss(parameters: Parameters, progress: Reals) -> Reals:
    """x: 1 at the start, 0 at the end."""
    excess: Reals = np.exp(-parameters.decay * np.log1p(progress / parameters.progress_scale))
    return excess


def noise_scale(parameters: Parameters, excess: Reals) -> Reals:
    """N in samples."""
    return parameters.noise_scale * excess**-parameters.noise_growth


def step_progress(parameters: Parameters, noise: Reals, batch: Reals) -> Reals:
    """f: mean progress of one iteration with global batch `batch`, negative where the learning rate is too large."""
    return model.step_progress(parameters.lr_rule, parameters.tuning, parameters.reference_batch, noise, batch)


def training_loss(parameters: Parameters, excess: Reals) -> Reals:
    return parameters.last_loss + (parameters.first_loss - parameters.last_loss) * excess


def training_accuracy(parameters: Parameters, excess: Reals) -> Reals:
    learned = 1 - excess**parameters.accuracy_power
    return parameters.chance + (parameters.best_accuracy - parameters.chance) * learned


def test_accuracy(parameters: Parameters, excess: Reals, smoothed_batch: Reals) -> Reals:
    """Training accuracy minus the gap; an untrained model has no gap."""
    lost = parameters.gap * smoothed_batch / (smoothed_batch + parameters.gap_batch)
    return parameters.chance + (training_accuracy(parameters, excess) - parameters.chance) * (1 - lost)


def smoothed_batch(parameters: Parameters, before: Reals, batch: Reals) -> Reals:
    """B~ after a window."""
    kept = np.exp(-parameters.iterations / GAP_MEMORY)
    return np.asarray(batch + (before - batch) * kept)
