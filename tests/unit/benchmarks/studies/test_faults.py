"""The campaign of faults: what counts as failed, how it goes on, and what weights survivors must have."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.faults.campaign import Trial, _plan, _read, summary
from benchmarks.studies.faults.fault_kinds import FAILS, KINDS
from benchmarks.workloads.tiny_regression import trained_alone


def trial(**changes: object) -> Trial:
    fields = {"seed": 1, "number": 0, "fault": "worker killed", "plane": "gloo", "expected": FAILS, "seen": FAILS}
    return Trial(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "problem",
    [{"hang": True}, {"wrong": "weights differ"}, {"cause": "not named"}, {"left": ("process 7",)}, {"slow": True}],
)
def test_any_problem_is_a_failure_and_counted(problem: dict[str, object]) -> None:
    assert not trial().failed
    assert trial(**problem).failed
    rows = summary([trial(cause_s=0.5), trial(**problem)])
    assert [row["fault"] for row in rows] == ["worker killed", "all"]
    counts = [rows[0][name] for name in ("hangs", "wrong results", "without the cause", "leftovers", "slow ends")]
    assert sorted(counts) == ["0", "0", "0", "0", "1"]
    assert rows[0]["latest cause (s)"] == "0.5"


def test_every_kind_comes_on_each_of_its_planes_before_any_comes_again() -> None:
    pairs = [(kind, plane) for kind in KINDS for plane in kind.planes]
    drawn = list(itertools.islice(_plan(KINDS, seed=5), 2 * len(pairs)))
    assert Counter((kind.key, plane) for kind, plane in drawn[: len(pairs)]) == Counter(
        (kind.key, plane) for kind, plane in pairs
    )
    assert drawn == list(itertools.islice(_plan(KINDS, seed=5), 2 * len(pairs))), "a campaign can go on only if so"
    assert drawn[: len(pairs)] != drawn[len(pairs) :]


def test_a_campaign_goes_on_after_the_trials_of_its_seed(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    assert _read(None, 1) == _read(file, 1) == []
    mine = [trial(number=number, left=("process 7",)) for number in range(2)]
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in (*mine, trial(seed=2))))
    assert _read(file, 1) == mine


def test_weights_depend_on_the_global_batch_and_not_on_how_it_is_split() -> None:
    whole = trained_alone(40, {0: (64,), 20: (32,)}, seed=3)
    assert np.allclose(trained_alone(40, {0: (24, 40), 20: (31, 1)}, seed=3), whole, rtol=1e-9)
    assert not np.allclose(trained_alone(40, {0: (24, 40), 21: (31, 1)}, seed=3), whole, rtol=1e-6)
