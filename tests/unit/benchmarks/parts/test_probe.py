"""The figures of `benchmarks.parts.probe` from made-up logs."""

from __future__ import annotations

import pytest

from benchmarks.parts.probe import ORDER, Block, slowdown

BLOCK_S = 2.0


def run(pairs: int, seconds: float, cost: float, drift: float = 0.0) -> tuple[list[Block], list[tuple[float, float]]]:
    """Blocks without gaps, and iterations that take `cost` more with the probe on and get slower by `drift` a block."""
    blocks, log = [], []
    now_s = 100.0
    for number in range(2 * pairs):
        on, began_s = ORDER[number % 4], now_s
        while now_s < began_s + BLOCK_S:
            duration_s = seconds * (1 + cost * on) * (1 + drift * number)
            now_s += duration_s
            log.append((now_s, duration_s))
        blocks.append(Block(on, began_s, now_s))
    return blocks, log


def test_cost_is_found() -> None:
    blocks, log = run(10, 0.02, cost=0.05)
    figures = slowdown(blocks, [log, log])
    assert figures["slowdown"] == pytest.approx(0.05)
    assert figures["off_ms"] == pytest.approx(20.0)
    assert figures["on_ms"] == pytest.approx(21.0)


def test_a_machine_that_gets_slower_is_no_cost() -> None:
    blocks, log = run(20, 0.02, cost=0.0, drift=0.01)
    figures = slowdown(blocks, [log])
    assert abs(figures["slowdown"]) < 0.001


def test_interrupted_pairs_do_not_count() -> None:
    blocks, log = run(20, 0.02, cost=0.01)
    hit = {4, 30}
    spoilt = [
        (ended, d * 3 if any(blocks[b].began_s < ended <= blocks[b].ended_s for b in hit) else d) for ended, d in log
    ]
    assert slowdown(blocks, [spoilt])["slowdown"] == pytest.approx(0.01, abs=1e-6)


def test_iterations_across_a_border_belong_to_no_block() -> None:
    blocks = [Block(False, 0.0, 1.0), Block(True, 2.0, 3.0)]
    log = [(0.5, 0.4), (1.2, 0.9), (2.1, 0.9), (2.6, 0.5), (3.1, 0.4)]
    figures = slowdown(blocks, [log])
    assert figures["pairs_ms"] == [[pytest.approx(400.0), pytest.approx(100.0)]]
