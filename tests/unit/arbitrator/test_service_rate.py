"""The arbitrator and the learning rate: from windows to the factor in the plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import Decision
from dynamix_ps.policy.rate.limits import STEPS
from dynamix_ps.rpc.refusals import MalformedMessageError
from tests.control_plane import config, registration, run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted

SIZES = (64, 64, 64)
ROOT = math.sqrt(0.5)


class Rated(Bench):
    """Windows that tell what was in force."""

    iterations = 50

    def __init__(self, folder: Path, policy: Any, lr: str = "decide", mode: str = "adapt") -> None:
        super().__init__(folder, policy, config(mode=mode).model_copy(update={"lr": lr}))

    async def close(self, number: int, **told: Any) -> None:
        known = {"lr_decided": self.plan.lr_factor, "lr_guard": 1.0, "lr_ratio": 1.0} | told
        first = self.iterations * number
        self.report(run_under(self.plan, number, first_iteration=first, iterations=self.iterations, **known))
        await self.arbitrator.step()


async def test_the_rule_decides_where_the_policy_does_not(tmp_path: Path) -> None:
    bench = Rated(tmp_path, Scripted(SIZES, SIZES, (32, 64, 64)))
    bench.register_all()
    await bench.close(0, trained_ratio=0.1)
    assert bench.plan == Plan(0, SIZES), "nearer to the present factor"
    await bench.close(1, trained_ratio=0.3)
    assert bench.plan == Plan(1, SIZES, ROOT)
    await bench.close(2, trained_ratio=0.3)
    assert bench.plan == Plan(2, (32, 64, 64), ROOT), "sizes change, the factor stays"
    first, second = bench.lines("plan")
    assert (first["lr_factor"], first["proposed_lr_step"]) == (ROOT, None)
    assert second["lr_factor"] == ROOT


async def test_a_policy_decides_within_what_it_is_told(tmp_path: Path) -> None:
    policy = Scripted(Decision(SIZES, lr_step=2.0), Decision(SIZES, lr_step=2.0), Decision(SIZES, lr_step=1.0))
    bench = Rated(tmp_path, policy)
    bench.register_all()
    await bench.close(0)
    assert bench.plan == Plan(1, SIZES, 2.0)
    await bench.close(1)
    assert bench.plan == Plan(1, SIZES, 2.0), "at most twice in a hundred iterations"
    await bench.close(2, trained_ratio=0.9)
    assert bench.plan == Plan(1, SIZES, 2.0), "a policy that keeps the rate is obeyed"
    assert [view.lr_steps for view in policy.views][:2] == [STEPS, STEPS[:3]]


async def test_without_decide_no_plan_has_a_factor(tmp_path: Path) -> None:
    bench = Rated(tmp_path, Scripted(Decision(SIZES, lr_step=0.5)), lr="follow")
    bench.register_all()
    await bench.close(0, trained_ratio=0.9)
    assert bench.plan == Plan(0, SIZES)
    assert bench.lines("kept")[0]["proposed_lr_step"] == 0.5


async def test_in_mode_observe_the_factor_is_decided_and_recorded_alone(tmp_path: Path) -> None:
    bench = Rated(tmp_path, Scripted(SIZES), mode="observe")
    bench.register_all()
    await bench.close(0, trained_ratio=0.5)
    assert bench.plan == Plan(0, SIZES)
    assert bench.lines("observed")[0]["lr_factor"] == 0.5


async def test_after_a_restart_the_rate_stays_for_a_window_and_does_not_rise_for_a_hundred_iterations(
    tmp_path: Path,
) -> None:
    before = Rated(tmp_path, Scripted(Decision(SIZES, lr_step=0.5)))
    before.arbitrator._journal.write("started", policy="scripted", workers=3, restarts=0)
    before.register_all()
    await before.close(0)
    assert before.plan == Plan(1, SIZES, 0.5)
    bench = Rated(tmp_path, Scripted(*[Decision(SIZES, lr_step=2.0)] * 2))
    bench.iterations = 45
    bench.register_all(Plan(1, SIZES, 0.5))
    factors = []
    for number in (1, 2, 3):
        await bench.close(number, trained_ratio=0.9)
        factors.append(bench.plan.lr_factor)
    assert factors == [0.5, 0.5, 1.0]


def test_a_plan_with_a_wrong_factor_is_refused_and_a_right_one_is_adopted(tmp_path: Path) -> None:
    bench = Rated(tmp_path, Scripted())
    with pytest.raises(MalformedMessageError, match=r"plan\.lr_factor: got 9, expected 0\.125\.\.8"):
        bench.arbitrator.register(registration(0, plan=Plan(1, SIZES, 9.0)))
    for rank in range(3):
        bench.arbitrator.register(registration(rank, plan=Plan(1, SIZES, 0.25)))
    assert bench.plan == Plan(1, SIZES, 0.25)
    assert bench.lines("adopted")[0]["lr_factor"] == 0.25
