"""How far one iteration brings training, by batch size: the quadratic model of gradient noise. Pure, any shapes.

McCandlish et al. (arXiv 1812.06162, 2.2): a step of size e, in units of the largest noiseless optimal step,
with a gradient averaged over B samples lowers the loss, in units of the best noiseless step, by

    f = 2 e - e^2 (1 + N / B) = h (2 - h) / (1 + N / B),    h = e (1 + N / B)    N: gradient noise scale, in samples

best at h = 1, negative beyond h = 2. The script's learning rate is taken to be tuned for B_0, the sum of the first
sizes: h = `tuning` there, while N changes (chosen by us). Elsewhere the learning-rate rule multiplies e by 1 (none),
B/B_0 (linear), sqrt(B/B_0), or AdaScale's gain (arXiv 2007.05105) (1 + N/B_0) / (1 + N/B), which keeps h = `tuning`
at any B, as Pollux's efficiency assumes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.base import LR_RULES

TUNING = 0.7  # of the script's learning rate at the first global batch, over the best one (assumed)
LARGEST_STEP = np.float32(3.0)  # h is cut off here: f >= -3 / (1 + N/B)
_NONE, _LINEAR, _SQRT, _ADASCALE = range(len(LR_RULES))

Reals = NDArray[np.floating[Any]]


def step_progress(
    rule: NDArray[np.int8], tuning: Reals | float, reference: Reals, noise_scale: Reals, batch: Reals
) -> Reals:
    """f: mean progress of one iteration with global batch `batch`, negative where the learning rate is too large.

    Args:
        rule: index into LR_RULES.
        reference: B_0.
    """
    per_step = 1 + noise_scale / batch
    ratio = batch / reference
    factor = np.where(rule == _LINEAR, ratio, np.where(rule == _SQRT, np.sqrt(ratio), 1))
    scaled = tuning * factor * per_step / (1 + noise_scale / reference)
    step = np.minimum(np.where(rule == _ADASCALE, tuning, scaled), LARGEST_STEP)
    gained: Reals = step * (2 - step) / per_step
    return gained
