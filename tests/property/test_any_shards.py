"""Every sample once per pass over shards of any lengths, on two to five real workers, after a resume too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.property.pool import Pool
from tests.property.streaming import Streaming, streamings

EXAMPLES = 300 if settings.get_current_profile_name() == "search" else 12  # for each number of workers


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(request.param, tmp_path_factory.mktemp("pool"), "tests.property.streaming:serve") as running:
        yield running


def changing(workers: int, lengths: tuple[int, ...], unused: bool) -> Streaming:
    """Plans that change in the first and in the second pass, one of them leaves a worker out."""
    plans = tuple((after, (after + 3, 9 - after // 3, 0, 5, 1)[:workers]) for after in (3, 7, 18))
    return Streaming(lengths, 1, (4,) * workers, plans, 9, unused, 2)


@pytest.mark.timeout(3600)
def test_every_sample_once_per_pass(pool: Pool) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(streamings(pool.size))
    @example(changing(pool.size, (30, 1, 0, 17, 2, 40, 9, 33), unused=False))
    @example(changing(pool.size, (1,) * 90, unused=True))
    def check(streaming: Streaming) -> None:
        begun = run(pool, streaming, None)
        states = [one["state"] for one in begun]
        assert all(state == states[0] for state in states)
        gone_on = run(pool, streaming, states[0])
        assert [one["epoch"] for one in gone_on] == [streaming.epochs] * pool.size
        for epoch in range(streaming.epochs):
            seen = [*chain.from_iterable(chain(*one["seen"][epoch]) for one in [*begun, *gone_on])]
            assert sorted(seen) == list(range(sum(streaming.lengths))), f"epoch {epoch}"
            batches = {len(one["seen"][epoch]) for one in begun}, {len(one["seen"][epoch]) for one in gone_on}
            assert [len(numbers) for numbers in batches] == [1, 1], "the workers differ in their iterations"

    check()


def run(pool: Pool, streaming: Streaming, state: dict[str, Any] | None) -> list[dict[str, Any]]:
    told = pool.run({"streaming": streaming.as_dict(), "state": state})
    assert all(isinstance(one, dict) for one in told), told
    return told  # type: ignore[return-value]
