"""When weights come back, to which iteration, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable

from worker_hooks.planning.learning_rate import LearningRate
from worker_hooks.planning.rate_guard import RISES, RateGuard

BROKEN = "the loss of worker 1 is not finite"


class Story:
    """A training whose state is one number: the iteration that it was copied in."""

    def __init__(self, guard: float = 1.0) -> None:
        self.rate = LearningRate("none", 64, 2, guard=guard)
        self.told: list[str] = []
        self.guard = RateGuard(self.rate, self.told.append)
        self.iteration = self.state = 0
        self.copied: list[int] = []
        self.layout = 0

    def copy(self) -> Callable[[], None]:
        at = self.iteration
        self.copied.append(at)

        def put_back() -> None:
            self.state = at

        return put_back

    def trains(self, iterations: int = 1, loss: float = 1.0, broken: str = "", finite: bool = True) -> list[str]:
        """Returns the reasons why weights came back."""
        reasons = []
        for _ in range(iterations):
            self.guard.before_batch(self.iteration, self.layout, self.copy)
            noisy = loss * (1 + 0.01 * math.sin(self.iteration))
            if reason := self.guard.reason(noisy, 64, broken, lambda: finite):
                reasons.append(reason)
                self.guard.roll_back(self.iteration)
            self.iteration += 1
        return reasons


def test_a_copy_every_forty_iterations_and_none_while_the_loss_is_suspicious() -> None:
    story = Story()
    assert story.trains(130) == []
    assert story.copied == [0, 40, 80, 120]
    story.trains(29)
    assert story.trains(1, loss=1.3) == []  # above its noise, for too short a time
    story.trains(20)
    assert 160 < story.copied[-1] < 170


def test_a_loss_that_rises_takes_the_newest_copy_back_and_halves_the_rate() -> None:
    story = Story()
    story.trains(95)
    assert story.trains(3, loss=3.0) == [RISES]
    assert story.state == 80
    assert story.rate.guard == 0.5
    assert story.rate.step(64).factor == 0.5


def test_a_loss_or_a_gradient_that_is_not_finite_acts_at_once() -> None:
    story = Story()
    story.trains(50)
    assert story.trains(broken=BROKEN) == [BROKEN]
    assert (story.state, story.rate.guard) == (40, 0.5)
    assert story.trains(finite=False) == ["the gradient is not finite"]
    assert story.rate.guard == 0.25


def test_what_was_known_comes_back_with_the_weights_as_often_as_they_do() -> None:
    story = Story()
    for _ in range(2):
        story.trains(10)
        assert story.trains(broken=BROKEN) == [BROKEN]
        assert story.state == 0 and math.isnan(story.guard.level), "no loss was known then"


def test_a_second_time_goes_back_to_the_copy_before() -> None:
    story = Story()
    story.trains(95)
    story.trains(broken=BROKEN)
    assert story.state == 80
    story.trains(20)
    story.trains(broken=BROKEN)
    assert story.state == 40
    story.trains(60)
    story.trains(broken=BROKEN)
    assert story.state > 116, "a new copy was made in the meantime"


def test_no_copy_is_made_right_after_a_rollback() -> None:
    story = Story()
    story.trains(79)
    story.trains(broken=BROKEN)
    story.trains(39)
    assert story.copied == [0, 40], "although the newest is old enough"
    story.trains(1)
    assert story.copied == [0, 40, 119]


def test_after_three_times_it_gives_up_and_says_so_once() -> None:
    story = Story()
    story.trains(50)
    assert [bool(story.trains(broken=BROKEN)) for _ in range(5)] == [True, True, True, False, False]
    assert story.rate.guard == 0.125
    assert story.told == [f"{BROKEN}, and the learning rate has been halved as often as it may be"]


def test_a_copy_of_other_parameters_does_not_come_back() -> None:
    story = Story()
    story.trains(50)
    story.layout = 1
    story.trains(1)
    assert story.copied == [0, 40, 50]
    story.trains(broken=BROKEN)
    story.trains(broken=BROKEN)
    assert story.state == 50


def test_the_noise_of_adascale_comes_back_too() -> None:
    story = Story()
    story.rate.noise = (1.0, 2.0)
    story.trains(50)
    story.rate.noise = (1e9, 1e9)
    story.trains(broken=BROKEN)
    assert story.rate.noise == (1.0, 2.0)


def test_a_loss_that_is_as_high_again_as_it_was_in_the_copy_is_no_rise() -> None:
    story = Story()
    for iteration in range(38):
        assert story.trains(loss=3.0 / (1 + iteration)) == []
    story.trains(broken=BROKEN)
    assert story.state == 0
    assert story.trains(20, loss=3.0) == []
