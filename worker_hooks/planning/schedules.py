"""Schedules of the learning rate that count steps, and that training ends far from their end. Pure."""

from __future__ import annotations

NEAR = 0.1  # part of its steps by which a schedule may miss its end (chosen by us)
STEPS_PER_PASS = 2  # a schedule that makes fewer goes by passes, whose number is as the script says


def missed_end(name: str, made: float, planned: float, rate: float, passes: int, repeats: bool = False) -> str:
    """A sentence for people if a schedule is far from its end when training has come to its own; empty: it is not.

    Args:
        made: steps of the schedule.
        planned: steps after which its rate stays as it is, or begins anew where it `repeats`.
        rate: that is set now.
        passes: over the data.
    """
    beyond = repeats and planned * (1 + NEAR) < made < 2 * planned
    if made <= STEPS_PER_PASS * max(passes, 1) or not (made < planned * (1 - NEAR) or beyond):
        return ""
    return (
        f"{name} has made {made:g} steps at the end of training, and was made for {planned:g}, so the learning rate "
        f"ends at {rate:.3g}. The number of steps follows the batch sizes: let the schedule follow run.progress, or "
        "make it for run.steps_planned(epochs) steps"
    )
