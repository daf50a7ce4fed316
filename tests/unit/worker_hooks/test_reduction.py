"""What gradients of means and of sums count with."""

from __future__ import annotations

import pytest

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.test_iteration import VIEW, batch
from worker_hooks.iteration.in_flight import IterationInFlight
from worker_hooks.iteration.reduction import Kind, Reduction, check


def begun(*sizes: tuple[int, int], kind: Kind = "mean") -> tuple[IterationInFlight, Reduction]:
    now, reduction = IterationInFlight(), Reduction()
    for size in sizes:
        now.begin(batch(*size))
    reduction.begin(kind, now)
    now.reduction = kind
    return now, reduction


def test_gradients_of_a_mean_count_by_samples_and_those_of_a_sum_as_they_are() -> None:
    assert [begun((2, 6), kind=kind)[1].weight(begun((2, 6))[0]) for kind in ("mean", "sum")] == [0.25, 1.0]
    assert [begun((0, 6), kind=kind)[1].weight(begun((0, 6))[0]) for kind in ("mean", "sum")] == [0.0, 0.0]


def test_the_recorded_loss_is_a_mean_over_samples() -> None:
    for kind, losses in (("mean", (8.0, 3.0)), ("sum", (16.0, 12.0))):
        now, _ = begun((2, 6), kind=kind)  # type: ignore[arg-type]
        now.add_loss(losses[0])
        now.begin(batch(4, 4))
        now.add_loss(losses[1])
        now.close_losses()
        assert (now.loss, now.weighted_loss) == (11.0, 8.0 / 4 + 3.0 / 2)
        now.close_losses()
        assert now.loss == now.weighted_loss == 0.0


def test_of_gradients_that_are_summed_already_the_first_worker_with_samples_keeps_them() -> None:
    for sizes, kind, keeper in (((2, 6), "mean", None), ((2, 6), "sum", 0), ((0, 6), "sum", 1)):
        now, reduction = begun(sizes)
        assert reduction.begin(kind, now) == keeper  # type: ignore[arg-type]


def test_the_reduction_may_change_where_nothing_has_been_weighted_for_the_other() -> None:
    now, reduction = begun((2, 6), (2, 6))
    assert not reduction.conflict("sum", now, has_local=True, has_mixed=False)
    now.begin(batch(6, 2))
    assert "weighted for means" in reduction.conflict("sum", now, has_local=True, has_mixed=False)
    assert not reduction.conflict("mean", now, has_local=True, has_mixed=False)
    assert not reduction.conflict("sum", now, has_local=False, has_mixed=False)
    now.summed(VIEW, 1.0, (2.0, 6.0))
    now.begin(batch(2, 6))
    assert "weighted for means" in reduction.conflict("sum", now, has_local=True, has_mixed=False)


def test_sums_are_not_added_to_those_before_by_every_worker() -> None:
    now, reduction = begun((2, 6), kind="sum")
    assert "zero_grad" in reduction.conflict("sum", now, has_local=True, has_mixed=True)
    assert not reduction.conflict("sum", now, has_local=True, has_mixed=False)


def test_nothing_makes_up_for_samples_that_lack_in_a_sum() -> None:
    for kind, factor in (("mean", 1.5), ("sum", 1.0)):
        now, reduction = begun((2, 6), kind=kind)  # type: ignore[arg-type]
        now.missing = [0]
        assert reduction.factor(now, 1.5) == factor
    reduction.kept_by = 0
    with pytest.raises(TrainingError, match=r"worker 0 is lost with gradients of a sum before iteration 0"):
        reduction.factor(now, 1.5)
    now.missing = [1]
    assert reduction.factor(now, 1.5) == 1.0


def test_gradient_norms_are_those_of_means() -> None:
    assert begun((2, 6))[1].per_sample(8) == 1.0
    assert begun((2, 6), kind="sum")[1].per_sample(8) == 8
    assert begun((2, 6), kind="sum")[1].per_sample(0) == 1


@pytest.mark.parametrize(("kind", "has_weight"), [("none", False), ("sum", True), ("Sum", False)])
def test_other_reductions_are_refused(kind: str, has_weight: bool) -> None:
    with pytest.raises(TrainingError, match=r'expected "mean" or "sum", and weight= for means alone'):
        check(kind, has_weight)
    assert check("mean", True) == "mean"
