from __future__ import annotations

import asyncio

from benchmarks.parts.sources.decision_path import follow


def test_decisions_are_followed_to_their_plans_and_meet_few_modules() -> None:
    for path in asyncio.run(follow(workers=4, warm_up=6, decisions=5)):
        assert path.published
        called = {function for _, function in path.calls}
        for function in ("safety_net.decide", "learned.policy.decide", "model.cluster.observe"):
            assert f"dynamix_ps.policy.{function}" in called
        assert ("(thread)", "dynamix_ps.run_record.json_lines.write") in path.calls, "the journal's thread is followed"
        assert len(path.modules) <= 31
        assert path.calls.total() <= 130
