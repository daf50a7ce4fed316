"""Whether the loss rises beyond its noise."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest

from worker_hooks.planning.loss_watch import LossWatch

BATCH = 256.0


def alarms(losses: Iterable[float], batch: float = BATCH, watch: LossWatch | None = None) -> list[int]:
    watch = watch or LossWatch()
    found = []
    for number, loss in enumerate(losses):
        if watch.rises(float(loss), batch):
            found.append(number)
            watch.forgive()
    return found


def falling(seed: int, iterations: int = 2000, noise: float = 0.15) -> np.ndarray:
    """From 2.3 to 0.4, with noise in proportion to the loss."""
    generator = np.random.default_rng(seed)
    mean = 0.4 + 1.9 * np.exp(-np.arange(iterations) / 200)
    return mean * (1 + noise * generator.standard_normal(iterations))


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_a_loss_that_falls_gives_no_alarm(noise: float) -> None:
    assert [alarms(falling(seed, noise=noise)) for seed in range(10)] == [[]] * 10


def test_heavy_tails_give_no_alarm() -> None:
    for seed in range(10):
        losses = falling(seed) * (1 + 0.1 * np.abs(np.random.default_rng(seed).standard_t(3, 2000)))
        assert alarms(losses) == []


def test_an_explosion_is_noticed_after_three_iterations() -> None:
    losses = falling(1)[:300]
    level = losses[-20:].mean()
    assert alarms([*losses, level * 3, level * 9, level * 27, level * 81])[0] in (301, 302)


# Losses of a Fashion-MNIST CNN with SGD, B = 192.
GOOD_RATE = "2.31 2.31 2.27 2.23 2.18 2.14 2.05 1.89 1.71 1.47 1.21 1.52 2.88 2.57 2.65 1.72 1.95 2.06 2.05"  # and on
FOUR_TIMES = "2.31 2.26 2.2 2.1 1.88 1.65 2.03 5.82 2.32 2.32 2.29 2.32 2.32 2.27 2.64"  # it is dead from here on


def numbers(text: str) -> list[float]:
    return list(map(float, text.split()))


def test_a_network_that_dies_early_is_noticed_and_one_that_comes_back_is_none() -> None:
    noise = 1 + 0.01 * np.random.default_rng(6).standard_normal(100)
    assert alarms([*numbers(GOOD_RATE), *(np.linspace(2.0, 0.8, 40) * noise[:40]), *(0.7 * noise)]) == []
    (first, *_) = alarms([*numbers(FOUR_TIMES), *(2.303 * noise)])
    assert 40 < first < 60


def test_a_dead_network_is_no_sound_state() -> None:
    watch = LossWatch()
    alarms([*numbers(FOUR_TIMES), *[2.303] * 15], watch=watch)
    assert not watch.is_sound
    alarms(falling(7)[:300], watch=(other := LossWatch()))
    sound = [other.is_sound for loss in falling(7)[300:400] if not other.rises(float(loss), BATCH)]
    assert len(sound) == 100 and sum(sound) > 20


def test_one_bad_batch_is_no_rise() -> None:
    losses = falling(2)
    losses[700] *= 20
    assert alarms(losses) == []


def test_a_model_that_died_is_noticed_though_its_loss_is_only_as_high_as_at_the_start() -> None:
    for seed in range(10):
        losses = falling(seed)[:150]
        dead = 2.3 * (1 + 0.02 * np.random.default_rng(seed).standard_normal(50))
        (first, *_) = alarms([*losses, *dead])
        assert 150 <= first <= 195


def test_an_explosion_in_the_first_iterations_is_noticed() -> None:
    assert alarms([2.31, 2.28, 2.35, 4.0, 11.0, 80.0, 500.0])[0] in (5, 6)


def test_a_slow_rise_is_noticed() -> None:
    losses = falling(3)[:1000]
    rising = (
        losses[-200:].mean() * (1 + np.arange(300) / 150) * (1 + 0.15 * np.random.default_rng(3).standard_normal(300))
    )
    found = alarms([*losses, *rising])
    assert found and 1000 < found[0] < 1120


def test_smaller_batches_are_noisier_and_no_rise() -> None:
    generator = np.random.default_rng(4)
    watch, found = LossWatch(), []
    for batch in (1024.0, 1024.0, 32.0, 32.0):
        losses = 1.0 + 4.0 / np.sqrt(batch) * generator.standard_normal(400)
        found += alarms(losses, batch, watch)
    assert found == []


def test_a_loss_without_noise_may_rise_by_a_hair() -> None:
    assert alarms(itertools.chain([1.0] * 100, [1.01] * 100)) == []
    assert alarms(itertools.chain([1.0] * 100, [1.5] * 100)) != []


def test_every_worker_finds_the_same_bits() -> None:
    one, other = LossWatch(), LossWatch()
    for loss in falling(5)[:500]:
        assert one.rises(float(loss), BATCH) == other.rises(float(loss), BATCH)
        assert one.level == other.level and one.is_sound == other.is_sound
