"""Every sample once per pass over any loader, on two and three real workers, after a resume in mid-pass too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.property.loading import Loading, loadings
from tests.property.pool import Pool

EXAMPLES = 500 if settings.get_current_profile_name() == "search" else 20  # for each number of workers


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(request.param, tmp_path_factory.mktemp("pool"), "tests.property.loading:serve") as running:
        yield running


def changing(workers: int, processes: int, prefetch: int, order: str, own_sampler: bool = False) -> Loading:
    """Plans that change twice in the first pass and once in the second, and a resume in the middle."""
    plans = tuple((after, (after + 3, 9 - after // 3, 0)[:workers]) for after in (3, 7, 18))
    sizes = (4,) * workers
    return Loading(120, order, (processes, 2, 0)[:workers], prefetch, True, own_sampler, sizes, plans, 9, 2)


@pytest.mark.timeout(3600)
def test_every_sample_once_per_pass(pool: Pool) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(loadings(pool.size))
    @example(changing(pool.size, 0, 1, "generator"))
    @example(changing(pool.size, 0, 4, "in order"))
    @example(changing(pool.size, 2, 1, "shuffle"))
    @example(changing(pool.size, 2, 4, "buckets"))
    @example(changing(pool.size, 2, 4, "shuffle", own_sampler=True))
    def check(loading: Loading) -> None:
        begun = run(pool, loading, None)
        states = [one["state"] for one in begun]
        assert all(state == states[0] for state in states)
        gone_on = run(pool, loading, states[0])
        for epoch in range(loading.epochs):
            seen = [*chain.from_iterable(chain(*one["seen"][epoch]) for one in [*begun, *gone_on])]
            assert sorted(seen) == list(range(loading.samples)), f"epoch {epoch}"
            batches = {len(one["seen"][epoch]) for one in begun}, {len(one["seen"][epoch]) for one in gone_on}
            assert [len(numbers) for numbers in batches] == [1, 1], "the workers differ in their iterations"

    check()


def run(pool: Pool, loading: Loading, state: dict[str, Any] | None) -> list[dict[str, Any]]:
    told = pool.run({"loading": loading.as_dict(), "state": state})
    assert all(isinstance(one, dict) for one in told), told
    return told  # type: ignore[return-value]
