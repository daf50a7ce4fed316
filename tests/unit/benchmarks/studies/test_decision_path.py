from __future__ import annotations

import asyncio

from benchmarks.studies.decision_path import follow


def test_a_decision_meets_few_modules_and_is_followed_to_its_plan() -> None:
    path = asyncio.run(follow(workers=4, warm_up=6))
    assert path.published
    assert {"dynamix_ps.arbitrator.service", "dynamix_ps.arbitrator.journal", "dynamix_ps.policy.learned.policy"} <= (
        path.modules
    )
    assert path.calls["dynamix_ps.arbitrator.service", "dynamix_ps.policy.learned.safety_net.decide"] == 1
    assert len(path.modules) <= 26
    assert path.calls.total() <= 80
