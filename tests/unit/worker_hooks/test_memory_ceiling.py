"""How many samples a worker computes at once."""

from __future__ import annotations

import math

import pytest

from dynamix_ps.errors import TrainingError
from worker_hooks.memory.memory_ceiling import MOST_FAILURES, MemoryCeiling, pieces


def search(ceiling: MemoryCeiling, samples: int, memory: int, smallest: int = 1) -> int:
    """What a worker computes of `samples` at once, where `memory` samples fit."""
    while not ceiling.is_proven(at_once := ceiling.at_once(samples, smallest)):
        if at_once <= memory:
            ceiling.fitted(at_once)
        else:
            ceiling.failed(at_once)
    return at_once


@pytest.mark.parametrize("memory", range(8, 65))
def test_the_ceiling_is_found_within_three_failures_and_nothing_beyond_it_is_used(memory: int) -> None:
    ceiling, found = MemoryCeiling(None, searches=True), []
    for _ in range(10):
        found.append(search(ceiling, 64, memory))
    assert found[-1] <= memory
    assert found[-1] == ceiling.samples or memory == 64
    assert found[-1] > memory / 2
    assert ceiling._failures <= MOST_FAILURES
    assert found == [found[0]] * 10


def test_what_is_proven_is_not_tried_again_and_a_larger_batch_is() -> None:
    ceiling = MemoryCeiling(None, searches=True)
    assert not ceiling.is_proven(16)
    assert search(ceiling, 16, 20) == 16
    assert ceiling.is_proven(16) and ceiling.is_proven(8) and not ceiling.is_proven(18)
    assert math.isnan(ceiling.samples)  # nothing has failed, so there is no ceiling yet
    assert search(ceiling, 18, 20) == 18
    found = search(ceiling, 64, 20)
    assert 18 <= found <= 20
    ceiling.prove_anew()
    assert not ceiling.is_proven(8)
    assert ceiling.at_once(64) == found  # first what fitted before
    assert search(ceiling, 64, 20) == found
    ceiling.prove_anew()
    assert 6 <= search(ceiling, 64, 12) <= 12


def test_what_fits_no_more_is_halved() -> None:
    ceiling = MemoryCeiling(None, searches=True)
    search(ceiling, 64, 64)
    for memory in (30, 14, 6, 2, 1):
        ceiling.failed(memory + 1)
        assert search(ceiling, 64, memory) <= memory


def test_a_limit_of_the_cluster_file_is_believed_without_trying() -> None:
    ceiling = MemoryCeiling(12, searches=False)
    assert ceiling.is_proven(12) and not ceiling.is_proven(13)
    assert (ceiling.at_once(64), ceiling.at_once(5), ceiling.samples) == (12, 5, 12)
    without = MemoryCeiling(None, searches=False)
    assert without.is_proven(10**9) and without.at_once(10**6) == 10**6 and math.isnan(without.samples)
    both = MemoryCeiling(12, searches=True)
    assert search(both, 64, 100) == 12 and both.samples == 12
    assert search(both, 64, 100) == 12
    both.failed(12)
    assert search(both, 64, 6) == 6


def test_a_batch_that_cannot_be_divided_is_an_error() -> None:
    ceiling = MemoryCeiling(None, searches=True)
    with pytest.raises(TrainingError, match="a batch of 1 sample does not fit into memory"):
        search(ceiling, 64, 0)
    with pytest.raises(TrainingError, match="a batch of 2 samples does not fit into memory"):
        search(MemoryCeiling(None, searches=True), 64, 1, smallest=2)


@pytest.mark.parametrize("samples", range(2, 70))
@pytest.mark.parametrize("at_once", [3, 4, 7, 16, 69])
def test_micro_batches_cover_the_batch_and_are_nearly_equal(samples: int, at_once: int) -> None:
    parts = pieces(samples, at_once, smallest=2)
    sizes = [end - begin for begin, end in parts]
    assert [begin for begin, _ in parts] + [samples] == [0, *(end for _, end in parts)]
    assert max(sizes) <= at_once and max(sizes) - min(sizes) <= 1 and min(sizes) >= 2
    assert len(sizes) == math.ceil(samples / at_once)


def test_a_micro_batch_of_one_sample_is_refused_with_batch_norm() -> None:
    with pytest.raises(TrainingError, match="set at_once to 3 or more"):
        pieces(3, 2, smallest=2)
