"""What workers say when they do not do the same: the same error on all of them, which names who, what and where."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from worker_hooks.exchange.agreement import GRADIENTS, LAYOUT, Account, DataPlace, Doing, disagreement, weights_differ

DOING = Doing(GRADIENTS, iteration=7, steps=7, layout=1, place=DataPlace(epoch=0, position=56, seed=5))
PARAMETERS = {"a.weight": "(2, 3) float32", "a.bias": "(2,) float32"}
WEIGHTS = {"a.weight": (0.5, 3.0), "a.bias": (0.25, -1.0)}


def told(*changes: dict[str, object]) -> str:
    accounts = [
        Account(
            DOING._replace(**change.get("doing", {})),  # type: ignore[arg-type]
            PARAMETERS | change.get("parameters", {}),  # type: ignore[operator]
            WEIGHTS | change.get("weights", {}),  # type: ignore[operator]
        )
        for change in changes
    ]
    return str(disagreement(dict(enumerate(Account.unpack(one.pack()) for one in accounts)), 1e-3))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"doing": {"kind": "run.evaluate()"}}, "workers 0, 2 sends the gradients of iteration 7; worker 1 calls"),
        ({"doing": {"iteration": 9}}, "worker 1 sends the gradients of iteration 9"),
        (
            {"doing": {"place": DataPlace(1, 0, 5)}},
            r"different places in the data .*worker 0: epoch 0, sample 56, seed 5, worker 1: epoch 1, sample 0,",
        ),
        (
            {"doing": {"place": DataPlace(0, 56, 5, owed=((0, 8, 16),))}},
            r"different places in the data .*worker 1: epoch 0, sample 56, seed 5, owed 0:8-16,",
        ),
        (
            {"doing": {"place": DataPlace(0, 56, 5, drawn=0xAB)}},
            r"sampler has drawn another order .*worker 1: epoch 0, sample 56, seed 5, order of the pass 000000ab,",
        ),
        ({"doing": {"steps": 6}}, r"numbers of steps before iteration 7 \(worker 0: 7, worker 1: 6, worker 2: 7"),
        ({"parameters": {"b": "(1,) float32"}}, r"parameter b .*worker 0: not trained, worker 1: \(1,\) float32"),
        ({"parameters": {"a.bias": "(2,) float64"}}, r"parameter a.bias is not the same .*iteration 7"),
        (
            {"doing": {"kind": LAYOUT}, "parameters": {"b": "(1,) float32"}},
            r"parameter b is not the same on all workers",
        ),
        (
            {"doing": {"refusal": "is a sum"}},
            r"the loss of worker 1 in iteration 7 is a sum. run.backward\(loss\) takes",
        ),
        ({"doing": {"setting": "loss scale 2"}}, r"settings .*worker 0: none; worker 1: loss scale 2"),
        ({"weights": {"a.bias": (0.3, -1.0)}}, r"weights differ .*iteration 7: a.bias of worker 1 is not that"),
        ({"weights": {"a.weight": (0.5, 3.1)}}, r"a.weight of worker 1"),
    ],
)
def test_what_differs_is_named(other: dict[str, object], expected: str) -> None:
    message = told({}, other, {})
    assert re.search(expected, message), message


def test_parameters_in_another_order_are_told() -> None:
    reverse = dict(reversed(PARAMETERS.items()))
    accounts = [Account(DOING, PARAMETERS, WEIGHTS), Account(DOING._replace(layout=2), reverse, WEIGHTS)]
    message = str(disagreement(dict(enumerate(Account.unpack(one.pack()) for one in accounts)), 1e-3))
    assert "the parameters are in another order on some workers in iteration 7" in message


def test_the_larger_group_is_right_and_with_two_workers_rank_0_is() -> None:
    odd = {"weights": {"a.bias": (0.3, -1.0)}}
    assert "a.bias of worker 0 is not" in told(odd, {}, {})
    assert "a.bias of worker 1 is not" in told({}, odd)


def test_codes_tell_doings_apart() -> None:
    doings = [
        DOING,
        DOING._replace(kind="run.evaluate()"),
        DOING._replace(iteration=8),
        DOING._replace(steps=8),
        DOING._replace(layout=2),
        *(DOING._replace(place=place) for place in (DataPlace(0, 57, 5), DataPlace(0, 56, 6), DataPlace(0, 56, 5, 1))),
        DOING._replace(place=DataPlace(0, 56, 5, owed=((0, 8, 16),))),
        DOING._replace(refusal="is a sum"),
        DOING._replace(setting="loss scale 2"),
    ]
    codes = {doing.code() for doing in doings}
    assert len(codes) == len(doings)
    assert all(0 <= code < 1 << 24 for code in codes)


def test_a_code_is_the_same_in_every_process() -> None:
    told = "from tests.unit.worker_hooks.test_agreement import DOING; print(DOING.code())"
    others = [
        subprocess.run(
            [sys.executable, "-c", told], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert {int(code) for code in others} == {DOING.code()}


def test_weights_within_the_tolerance_are_equal() -> None:
    assert not weights_differ([(1.0, 1.00005), (2.0, 2.0)], 1e-4)
    assert weights_differ([(1.0, 1.0), (2.0, 2.001)], 1e-4)


def test_without_a_lost_worker_the_others_keep_their_ranks() -> None:
    accounts = {rank: Account(DOING, PARAMETERS, WEIGHTS) for rank in (0, 2, 3)}
    late = accounts | {2: accounts[2]._replace(doing=DOING._replace(steps=6))}
    assert "worker 0: 7, worker 2: 6, worker 3: 7)" in str(disagreement(late, 1e-3))
    odd = accounts | {3: accounts[3]._replace(weights=WEIGHTS | {"a.bias": (0.3, -1.0)})}
    assert "a.bias of worker 3 is not that" in str(disagreement(odd, 1e-3))
    calls = accounts | {2: accounts[2]._replace(doing=DOING._replace(kind="run.evaluate()"))}
    assert "workers 0, 3 sends the gradients" in str(disagreement(calls, 1e-3))
