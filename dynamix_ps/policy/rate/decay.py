"""The rule for the learning rate where the policy does not decide: linear decay to the end of the budget. Pure.

    wanted factor = max(1 - part of the training that is done, 1/8)

It is 1 where the end of training is not known, and where the script lowers its learning rate itself. Linear decay is
what Defazio et al. recommend (arXiv 2310.07831). In our trainings of five workloads it reaches a target with 0.93 to
1.05 of the samples of the best fixed rate, and ends higher. That it ends at 1/8 is chosen by us, as in limits.py.
"""

from __future__ import annotations

from dynamix_ps.policy.model.efficiency import FALLEN
from dynamix_ps.rpc.plan_rules import SMALLEST_LR_FACTOR


def decayed(trained_ratio: float, lr_ratio: float) -> float:
    """The factor that is wanted.

    Args:
        trained_ratio: part of the training that is done, 0 to 1; NaN: its end is not known.
        lr_ratio: the script's own learning rate over its largest one; NaN: not known.
    """
    if trained_ratio >= 0 and lr_ratio >= FALLEN:
        return max(1 - trained_ratio, SMALLEST_LR_FACTOR)
    return 1.0
