"""The list of tests that may fail beside others is short, true, and lets nothing else fail."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import may_fail

ROOT = Path(__file__).resolve().parents[2]


def test_it_names_at_most_ten_tests_each_with_date_and_reason() -> None:
    found = may_fail.allowed()
    assert len(found) <= 10
    for one in found:
        assert date.fromisoformat(one.since) <= date.today()
        file, _, name = one.test.partition("::")
        assert re.search(rf"^(async )?def {name.partition('[')[0]}\(", (ROOT / file).read_text(), re.MULTILINE), one
        assert len(one.why) > 20


@pytest.mark.parametrize(
    ("failed", "errors", "exit_code"),
    [(["a"], [], 0), (["a", "b"], [], 1), (["a"], ["b"], 1), ([], ["a"], 0), ([], [], 1)],
)
def test_only_they_may_fail(
    failed: list[str], errors: list[str], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(may_fail, "allowed", lambda: [may_fail.Allowed("2026-11-29", "a", "why")])
    stats = {
        name: [SimpleNamespace(nodeid=one) for one in ids] for name, ids in (("failed", failed), ("error", errors))
    }
    manager = SimpleNamespace(get_plugin=lambda _: SimpleNamespace(stats=stats))
    session: Any = SimpleNamespace(exitstatus=1, config=SimpleNamespace(pluginmanager=manager))
    may_fail.pytest_sessionfinish(session)
    assert session.exitstatus == exit_code
