"""The table of faults is complete: every row is held by a test that exists, and there are many kinds."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.faults.attacks import ATTACKS
from tests.faults.other_rows import HELD_ELSEWHERE, SURROUNDINGS
from tests.faults.refusal_rows import REFUSALS
from tests.faults.signal_rows import SIGNAL_FAULTS
from tests.faults.table import HeldElsewhere
from tests.faults.training_rows import TRAINING_FAULTS
from tests.faults.worker_rows import WORKER_FAULTS
from tests.launching import ROOT


def test_there_are_many_kinds_and_each_has_one_name() -> None:
    rows = (*WORKER_FAULTS, *SIGNAL_FAULTS, *TRAINING_FAULTS, *REFUSALS, *SURROUNDINGS, *HELD_ELSEWHERE, *ATTACKS)
    keys = [row.key for row in rows]
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    assert len(keys) >= 60


@pytest.mark.parametrize("row", HELD_ELSEWHERE, ids=lambda row: row.key)
def test_a_test_that_a_row_names_exists(row: HeldElsewhere) -> None:
    file, _, name = row.test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
