"""A server holds about two times its part of the model, whatever was broadcast before and however long it runs."""

from __future__ import annotations

import pytest

from benchmarks.parts.server_memory import SETTLED, problems, readings

pytestmark = pytest.mark.timeout(120)

MODEL_BYTES, STATE_BYTES = 32 << 20, 64 << 20


def test_a_server_holds_little_and_does_not_grow() -> None:
    taken = dict(readings(MODEL_BYTES, STATE_BYTES, read_at=(SETTLED, 60)))
    assert not problems(taken, MODEL_BYTES), taken
