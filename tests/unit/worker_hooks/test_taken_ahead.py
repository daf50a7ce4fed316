"""A batch that is taken before the one before it is trained. In one process (comm: local)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import SAMPLES, make_run, train, weights
from worker_hooks.run import Run
from worker_hooks.torch.loss.batch_of_loss import batch_of

SIZES = [8, 8, 8, 8, 8, 5, 5]  # of a pass


def one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    before = None
    for batch in batches:
        if before is not None:
            yield before
        before = batch
    if before is not None:
        yield before


def trained(run: Run, batches: Iterable[Any], stop: int | None = None) -> list[torch.Tensor]:
    """Train; returns the inputs of every batch. `stop`: leave the loop after so many."""
    seen = []
    for inputs, targets in batches:
        run.optimizers[0].zero_grad()
        run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
        run.optimizers[0].step()
        seen.append(inputs)
        if len(seen) == stop:
            break
    return seen


def test_a_training_one_batch_ahead_is_that_without() -> None:
    plain, ahead, places = make_run(), make_run(), []
    train(plain, epochs=2)
    before = ahead.training.session.account.samples  # of this process
    for _ in ahead.epochs(2):
        for inputs, _ in trained_pairs(ahead):
            places.append((ahead.iteration, ahead.epoch, ahead.position_in_pass, len(inputs)))
    assert torch.equal(weights(plain), weights(ahead))
    assert [place[3] for place in places] == 2 * SIZES
    assert [place[0] for place in places] == list(range(1, 15))
    assert [place[1:3] for place in places[4:9]] == [(0, 40), (0, 45), (1, 0), (1, 8), (1, 16)]
    assert (ahead.iteration, ahead.epoch, ahead.training.session.account.samples - before) == (14, 2, 2 * SAMPLES)


def trained_pairs(run: Run) -> Iterator[Any]:
    for batch in one_ahead(run.batches()):
        trained(run, [batch])
        yield batch


def test_a_checkpoint_has_no_batch_that_is_only_taken(tmp_path: Any) -> None:
    whole, first = make_run(), make_run()
    train(whole, epochs=1)
    for number, batch in enumerate(one_ahead(first.batches(epochs=1)), start=1):
        trained(first, [batch])
        if number == 3:
            first.save(tmp_path / "x.pt")
            break
    resumed = make_run(resume=tmp_path / "x.pt")
    assert len(trained(resumed, one_ahead(resumed.batches(epochs=1)))) == len(SIZES) - 3
    assert torch.equal(weights(whole), weights(resumed))


def test_a_break_ends_the_pass_and_drops_the_batch_that_was_taken() -> None:
    run, firsts = make_run(), []
    for _ in run.epochs(3):
        firsts.append(trained(run, one_ahead(run.batches()), stop=2)[0])
        assert run.position_in_pass == 0
    assert run.iteration == 6
    assert len({tuple(first.flatten().tolist()) for first in firsts}) == 3


def test_batches_that_are_left_out_are_not_trained_whatever_came_before() -> None:
    run = make_run()
    assert len(trained(run, one_ahead(run.batches(epochs=1)))) == len(SIZES)
    kept = [batch for number, batch in enumerate(run.batches(epochs=2)) if number not in (1, 2, 6)]
    assert len(kept) == 4 and run.iteration == 14, "nothing was trained"
    seen = trained(run, (batch for number, batch in enumerate(run.batches(epochs=3)) if number not in (1, 6)))
    assert list(map(len, seen)) == [8, 8, 8, 8, 5]
    assert (run.iteration, run.epoch) == (21, 3)


def test_a_loop_of_one_batch_is_one_ahead_once_the_script_has_shown_it() -> None:
    run = make_run()
    trained(run, one_ahead(run.batches(iterations=3)))
    for number in range(4, 7):
        assert len(trained(run, one_ahead(run.batches(iterations=number)))) == 1
        assert run.iteration == number


def test_a_third_batch_is_refused_at_once_where_the_script_is_one_ahead() -> None:
    run = make_run()
    batches = run.batches(iterations=7)
    trained(run, [next(one_ahead(batches))])
    next(batches)
    with pytest.raises(TrainingError, match="iteration 3 was taken before those of the two iterations before it"):
        next(batches)


@pytest.mark.parametrize("iterations", [2, 6])
def test_where_a_loss_does_not_show_its_batch_sizes_that_differ_are_refused(iterations: int) -> None:
    """Batches 4 and 5 have 8 and 5 samples."""
    run = make_run()
    batches = run.batches(iterations=iterations)
    for _ in range(iterations - 2):
        trained(run, [next(batches)])
    next(batches), next(batches)
    before, loss = weights(run), shows_nothing(run)
    if iterations == 2:
        run.backward(loss)
        run.optimizers[0].step()
        assert run.iteration == 2
    else:
        with pytest.raises(TrainingError, match=r"iterations 4 and 5 .* their sizes differ, and no loss has shown"):
            run.backward(loss)
        assert torch.equal(weights(run), before)


def test_where_no_loss_shows_its_batch_all_sizes_have_to_be_alike() -> None:
    """Sizes of 8, and of 5 from batch 5 on. The first loss may be of batch 0 or 1, each one after it of the next."""
    run = make_run()
    batches = run.batches(iterations=7)
    next(batches)
    for _ in range(4):
        next(batches)
        run.backward(shows_nothing(run))
        run.optimizers[0].step()
    next(batches)
    before = weights(run)
    with pytest.raises(TrainingError, match=r"iterations 4 and 5 .* their sizes differ, and no loss has shown"):
        run.backward(shows_nothing(run))
    assert torch.equal(weights(run), before)


def test_a_batch_ahead_that_shows_too_late_is_refused_where_sizes_differ() -> None:
    """The first loss counts for batch 1, and so on: the last one of 8 samples counts for the first one of 5."""
    run = make_run()
    batches = run.batches(iterations=7)
    _, second, _ = next(batches), next(batches), run.backward(shows_nothing(run))
    run.optimizers[0].step()
    with pytest.raises(TrainingError, match=r"iterations 4 and 5 .* their sizes differ"):
        trained(run, one_ahead(chain([second], batches)))
    assert run.iteration == 5


def test_a_loss_that_shows_the_batch_at_hand_ends_the_doubt() -> None:
    run = make_run()
    batches = run.batches(iterations=7)
    next(batches), next(batches)
    run.backward(shows_nothing(run))
    for _ in range(2):
        trained(run, [next(batches)])
    for _ in range(2):
        next(batches)
        run.backward(shows_nothing(run))
    assert run.iteration == 5 and not run.training.loops.taken.is_open


def shows_nothing(run: Run) -> torch.Tensor:
    """A loss whose graph keeps nothing of a batch."""
    return sum(((p * torch.ones(())).sum() for p in run.models[0].parameters()), torch.zeros(()))


@pytest.mark.parametrize("way", ["plain", "copies", "targets", "recomputed", "scaled"])
def test_the_graph_of_a_loss_shows_its_batch(way: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    batches = [(torch.randn(6, 4), {"classes": torch.tensor([0, 1, 1, 0, 1, number])}) for number in (0, 1)]
    for number, (inputs, targets) in enumerate(batches):
        classes, x = targets["classes"], inputs
        if way == "copies":
            classes, x = classes.clone(), inputs.clone()
        if way == "targets":
            x = (inputs - 1) / 2
        found = checkpoint(model, x, use_reentrant=False) if way == "recomputed" else model(x)
        loss = nn.functional.cross_entropy(found, classes)
        assert batch_of(loss * 1024 if way == "scaled" else loss, batches) == number
    assert batch_of(model(torch.ones(6, 4)).mean(), batches) is None
    assert batch_of(3.0, batches) is None
