"""Every sample once per pass, over any loader and any shards, where another number of workers goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.property.loading import Loading, loadings
from tests.property.pool import Pool
from tests.property.streaming import Streaming, streamings

EXAMPLES = 200 if settings.get_current_profile_name() == "search" else 8
NUMBERS = (2, 3)  # of workers
ways = st.permutations(NUMBERS).map(tuple)  # (before the resume, after it)


@pytest.fixture(scope="module")
def pools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Pool]]:
    serves = f"tests.property.{request.param}:serve"
    with ExitStack() as stack:
        yield {n: stack.enter_context(Pool(n, tmp_path_factory.mktemp("pool"), serves)) for n in NUMBERS}


def fitted(of_three: Any, workers: int) -> dict[str, Any]:
    """A training for three workers as one for so many of them."""
    one = of_three.as_dict()
    one["plans"] = [
        (after, sizes[:workers] if any(sizes[:workers]) else (1,) * workers) for after, sizes in one["plans"]
    ]
    return one | {name: one[name][:workers] for name in ("sizes", "processes") if name in one}


def train(pools: dict[int, Pool], name: str, of_three: Any, way: tuple[int, int]) -> list[dict[str, Any]]:
    """What all workers tell, of before the resume and of after it."""
    told: list[dict[str, Any]] = []
    for workers in way:
        one = pools[workers].run({name: fitted(of_three, workers), "state": told[0]["state"] if told else None})
        assert all(isinstance(each, dict) for each in one), one
        told += one  # type: ignore[arg-type]
    return told


def assert_every_sample_once(told: list[dict[str, Any]], epochs: int, samples: int) -> None:
    for epoch in range(epochs):
        seen = chain.from_iterable(chain.from_iterable(one["seen"][epoch]) for one in told)
        assert sorted(seen) == list(range(samples)), f"epoch {epoch}"


PLANS = ((3, (6, 2, 0)), (7, (0, 5, 9)))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pools", ["loading"], indirect=True)
def test_over_any_loader(pools: dict[int, Pool]) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(loadings(3), ways)
    @example(Loading(120, "generator", (0, 0, 0), 1, True, False, (4, 4, 4), PLANS, 9, 2), (2, 3))
    @example(Loading(120, "buckets", (2, 0, 2), 4, True, True, (4, 4, 4), PLANS, 9, 2), (3, 2))
    def check(loading: Loading, way: tuple[int, int]) -> None:
        assert_every_sample_once(train(pools, "loading", loading, way), loading.epochs, loading.samples)

    check()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pools", ["streaming"], indirect=True)
def test_over_any_shards(pools: dict[int, Pool]) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(streamings(3), ways)
    @example(Streaming((30, 1, 0, 17, 2, 40, 9, 33), 1, (4, 4, 4), PLANS, 9, False, 2), (2, 3))
    @example(Streaming((1,) * 90, 1, (4, 4, 4), PLANS, 9, True, 2), (3, 2))
    def check(streaming: Streaming, way: tuple[int, int]) -> None:
        told = train(pools, "streaming", streaming, way)
        assert_every_sample_once(told, streaming.epochs, sum(streaming.lengths))

    check()
