"""How the learning rate follows the global batch. Pure."""

from __future__ import annotations

import math
from typing import Literal

Rule = Literal["none", "linear", "sqrt"]


def learning_rate_factor(rule: Rule, global_batch: int, reference_batch: int) -> float:
    """Factor on the script's own learning rate when B differs from the B the script was tuned for (plan 0).

    `linear` suits SGD with small batches, `sqrt` Adam-like optimizers; `none` leaves it alone.
    """
    ratio = global_batch / reference_batch
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
