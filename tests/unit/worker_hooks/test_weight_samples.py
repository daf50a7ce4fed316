"""Samples of the weights show a change of any tensor within one round."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.exchange.weight_samples import EVERY, ROUND, SAMPLE, WeightSamples, part_of


def measure(values: np.ndarray, offset: int) -> tuple[float, float]:
    part = values[part_of(values.size, offset)]
    return float(part.sum()), float(np.linalg.norm(part))


def samples_of(tensors: list[np.ndarray]) -> WeightSamples[np.ndarray]:
    return WeightSamples({str(number): tensor for number, tensor in enumerate(tensors)}, measure)


@given(tensors=st.integers(1, 130), odd=st.integers(0, 10_000), start=st.integers(0, 200))
def test_a_tensor_that_differs_shows_within_one_round(tensors, odd, start):
    odd %= tensors
    mine = [np.full(3, float(number + 1)) for number in range(tensors)]
    other = [tensor.copy() for tensor in mine]
    other[odd] *= 1.01
    found = [
        number
        for number in range(start, start + ROUND)
        if abs(samples_of(mine).part(number)[1] - samples_of(other).part(number)[1]) > 1e-3
    ]
    assert found
    differ = [n for n, value in samples_of(mine).each(0).items() if samples_of(other).each(0)[n] != value]
    assert differ == [str(odd)]


def test_sums_between_two_samples_measure_nothing():
    measured = []
    tensors = {str(number): np.ones(3) for number in range(130)}
    samples = WeightSamples(tensors, lambda values, offset: measured.append(offset) or measure(values, offset))
    of_sums = []
    for number in range(2 * ROUND):
        before = len(measured)
        part = samples.part(number)
        of_sums.append(len(measured) - before)
        assert (part == (0.0, 0.0)) == (of_sums[-1] == 0)
    assert [number for number, count in enumerate(of_sums) if count] == list(range(0, 2 * ROUND, EVERY))
    assert sum(of_sums) == 2 * len(tensors), "each of them once in a round"


def test_a_change_of_sign_shows_in_the_direction():
    values = np.array([1.0, 2.0, 4.0])
    assert samples_of([values]).part(0)[0] == -samples_of([-values]).part(0)[0] != 0


def test_broken_and_zero_weights_give_finite_numbers():
    for values in ([math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]):
        assert all(map(math.isfinite, samples_of([np.array(values)]).part(0)))


def test_all_values_of_a_large_tensor_are_reached_by_shifting():
    size = 10 * SAMPLE
    reached = set()
    for offset in range(10):
        part = list(range(size))[part_of(size, offset)]
        assert len(part) == SAMPLE
        reached.update(part)
    assert len(reached) == size
