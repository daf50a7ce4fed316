"""Which piece a worker sends next: the sources as they are, on a network that elastic/lanes.cc plays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.byteps_build.test_elastic import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

SCHEDULES = 1000

ASKS = "head.asks = head.bytes && !asked_ && (!fits || SeveralWait());"
BREAKS = {
    "one-window-for-all-that-has-no-answer": (ASKS, "if (!fits) return false;", "stuck"),
    "servers-give-no-receipts": ("if (!head.asks) return;", "return;", "stuck"),
    "all-may-be-in-flight": ("if (!fits && asked_) return false;", "", "more than may be in flight"),
    "no-limit-per-priority": (
        "!Fits(row.unanswered, row.waiting.front().head.bytes, window)",
        "false",
        "too far ahead",
    ),
    "the-least-urgent-first": ("map<uint32_t, Row> rows_", "map<uint32_t, Row, std::greater<uint32_t>> rows_", "first"),
}


def play(program: Path, schedules: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, "0", str(schedules)], capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_that_send_in_different_orders_do_not_block_each_other(tmp_path: Path) -> None:
    done = play(build(tmp_path, "lanes"), SCHEDULES)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > SCHEDULES, "receipts"


@pytest.mark.slow
@pytest.mark.parametrize(("right", "wrong", "told"), BREAKS.values(), ids=BREAKS)
def test_each_rule_is_needed(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    done = play(build(tmp_path, "lanes", {right: wrong}), SCHEDULES)
    assert done.returncode != 0 and told in done.stderr, done.stderr[-3000:]
