"""The search moves to the points of the lowest scores."""

from __future__ import annotations

import numpy as np

from benchmarks.studies.cross_entropy import SMALLEST, Search


def test_it_finds_the_lowest_point_of_a_bowl_along_all_numbers_at_once() -> None:
    lowest, rng = np.array([1.5, -0.7, 0.3]), np.random.default_rng(0)
    search = Search(np.zeros(3), np.ones(3))
    for _ in range(25):
        points = search.draw(20, rng)
        search = search.after(points, ((points - lowest) ** 2).sum(axis=1), best=5)
    assert np.allclose(search.mean, lowest, atol=0.1)


def test_only_the_best_points_count_and_the_first_one_is_the_mean() -> None:
    search = Search(np.array([2.0]), np.array([1.0]))
    assert search.draw(4, np.random.default_rng(0))[0] == 2.0
    after = search.after(np.array([[0.0], [1.0], [2.0], [9.0]]), np.array([0.0, -1.0, 5.0, 7.0]), best=2)
    assert after.mean == 0.5
    assert after.deviation == 0.75, "half of the one before, half of that of the best"
    same = search.after(np.zeros((3, 1)), np.zeros(3), best=3)
    for _ in range(10):
        same = same.after(np.zeros((3, 1)), np.zeros(3), best=3)
    assert same.deviation == SMALLEST
