"""Which gradients travel together: all once, in the order of backward, in parts that can leave early."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.gradient_exchange import bucket_layout

VGG11 = [64 * 27, 64, 128 * 576, 128, 256 * 1152, 256, 256 * 2304, 256, 512 * 2304, 512]
VGG11 += [512 * 4608, 512, 512 * 4608, 512, 512 * 4608, 512, 10 * 512, 10]
CNN = [16 * 25, 16, 32 * 400, 32, 1568 * 128, 128, 1280, 10]
MIB = 1 << 20


def layout(values: list[int], most: int = 4_000_000, least: int = 0) -> list[list[int]]:
    return bucket_layout([4 * size for size in values], [0] * len(values), most, least)


@given(
    st.lists(st.tuples(st.integers(0, 5_000_000), st.sampled_from("ab")), min_size=1, max_size=30),
    st.integers(1, 2**30),
    st.integers(0, 2**30),
)
def test_every_gradient_travels_once_in_the_order_of_backward(parameters, most, least):
    sizes, kinds = [size for size, _ in parameters], [kind for _, kind in parameters]
    groups = bucket_layout(sizes, kinds, most, least)
    with_values = [number for group in groups for number in group if sizes[number]]
    assert with_values == sorted(with_values, reverse=True)
    assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
    assert all(len({kinds[number] for number in group if sizes[number]}) <= 1 for group in groups)
    full = min(most, max(least, sum(sizes) // 9))
    least_at_all = min(most, max(least, sum(sizes) // 128))
    for group in groups[:-1]:  # none is larger than it takes to be full
        large = [sizes[number] for number in group if sizes[number]]
        assert sum(large[:-1]) < full + least_at_all or not large[:-1]
    assert (groups[-1] == []) == (len(groups) > 1)


def test_most_of_a_model_leaves_while_backward_runs():
    *groups, trailer = layout([1_000] * 128)
    assert [len(group) for group in groups] == [1, 1, 2, 4, 8, 14, 14, 14, 14, 14, 14, 14, 7, 4, 2, 1]
    assert trailer == []


def test_layers_of_one_size_travel_one_by_one_if_there_are_eight():
    assert layout([262_144] * 8 + [10], least=25_000) == [[8, 7], [6], [5], [4], [3], [2], [1], [0], []]


def test_a_small_gradient_does_not_travel_alone_between_large_ones():
    groups = [[4 * VGG11[number] for number in group] for group in layout(VGG11) if group]
    assert min(map(sum, groups[:-1])) > MIB


def test_a_model_leaves_in_parts_where_the_link_is_slow_and_at_once_where_it_is_fast():
    assert layout(CNN, least=25_000) == [[7, 6, 5, 4], [3, 2, 1, 0], []]  # convolutions later, 93 % before
    assert layout(CNN, least=sys.maxsize) == [[7, 6, 5, 4, 3, 2, 1, 0]]


def test_a_limit_in_the_cluster_file_holds_whatever_the_link_is():
    assert len(layout([1000] * 16, most=4000, least=sys.maxsize)) == 17


def test_a_bucket_has_one_kind_of_parameters_even_where_more_would_fit():
    kinds = ["float32", "float64", "float64", "float32"]
    assert bucket_layout([4] * 4, kinds, 100, 100) == [[3], [2, 1], [0], []]


def test_a_model_without_parameters_is_refused():
    with pytest.raises(TrainingError, match="nothing to train"):
        bucket_layout([], [], 1, 1)
