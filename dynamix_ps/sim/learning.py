"""How far an iteration brings the model: the quadratic model of gradient noise. Pure, all shapes (E,).

McCandlish et al. (arXiv 1812.06162, 2.2): a step of size e, in units of the largest noiseless optimal step,
with a gradient averaged over B samples lowers the loss, in units of the best noiseless step, by

    f = 2 e - e^2 (1 + N / B)               N: gradient noise scale, in samples

best at e = 1 / (1 + N/B), where f = 1 / (1 + N/B); negative when e is twice that. `progress` is the sum of f.

From here on chosen by us, with shapes commonly seen:
- The script's own learning-rate schedule is tuned for B_0, the B of plan 0: it stays at `tuning` of the best
  step there while N grows, e_0 = tuning / (1 + N/B_0). The rule then multiplies it by 1 (none), B/B_0 (linear),
  sqrt(B/B_0), or the gain of AdaScale (arXiv 2007.05105) (1 + N/B_0) / (1 + N/B). With h = e (1 + N/B),
  f = h (2 - h) / (1 + N/B); AdaScale keeps h = tuning at any B, which is what Pollux's efficiency assumes.
- Excess loss falls as a power law of progress, x = (1 + progress / scale)^-decay.
- N grows as a power of the excess loss, N = N_0 x^-growth (Kaplan et al., arXiv 2001.08361, 5.1, give
  a critical batch as a power of the loss).
- The error beyond the best possible falls as x^power. Large batches generalise worse (arXiv 1609.04836): on the
  test set the part gap * B~ / (B~ + gap_batch) of what was learned is lost, B~ being B smoothed over GAP_MEMORY
  iterations, so the loss is undone when B falls again.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.sim.parameters import LR_RULES, Parameters, Reals

GAP_MEMORY = 500.0  # iterations
LUCK = np.float32(0.1)  # standard deviation of a window's progress over its mean
LARGEST_STEP = np.float32(3.0)  # h is cut off here: f >= -3 / (1 + N/B)
_NONE, _LINEAR, _SQRT, _ADASCALE = range(len(LR_RULES))


def excess_loss(parameters: Parameters, progress: Reals) -> Reals:
    """x: 1 at the start, 0 at the end."""
    return np.exp(-parameters.decay * np.log1p(progress / parameters.progress_scale))


def noise_scale(parameters: Parameters, excess: Reals) -> Reals:
    """N in samples."""
    return parameters.noise_scale * excess**-parameters.noise_growth


def step_progress(parameters: Parameters, noise: Reals, batch: Reals) -> Reals:
    """f: mean progress of one iteration with global batch `batch`, negative where the learning rate is too large."""
    reference = parameters.reference_batch
    per_step = 1 + noise / batch
    rule = parameters.lr_rule
    ratio = batch / reference
    factor = np.where(rule == _LINEAR, ratio, np.where(rule == _SQRT, np.sqrt(ratio), 1))
    scaled = parameters.tuning * factor * per_step / (1 + noise / reference)
    step = np.minimum(np.where(rule == _ADASCALE, parameters.tuning, scaled), LARGEST_STEP)
    gained: Reals = step * (2 - step) / per_step
    return gained


def training_loss(parameters: Parameters, excess: Reals) -> Reals:
    return parameters.last_loss + (parameters.first_loss - parameters.last_loss) * excess


def training_accuracy(parameters: Parameters, excess: Reals) -> Reals:
    learned = 1 - excess**parameters.accuracy_power
    return parameters.chance + (parameters.best_accuracy - parameters.chance) * learned


def test_accuracy(parameters: Parameters, excess: Reals, smoothed_batch: Reals) -> Reals:
    """Training accuracy less the gap; a model that has learned nothing has none."""
    lost = parameters.gap * smoothed_batch / (smoothed_batch + parameters.gap_batch)
    return parameters.chance + (training_accuracy(parameters, excess) - parameters.chance) * (1 - lost)


def smoothed_batch(parameters: Parameters, before: Reals, batch: Reals) -> Reals:
    """B~ after a window."""
    kept = np.exp(-parameters.iterations / GAP_MEMORY)
    return np.asarray(batch + (before - batch) * kept)
