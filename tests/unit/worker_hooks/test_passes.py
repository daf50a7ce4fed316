"""Loops over passes as people write them: called twice, left by `break`, resumed. In one process (comm: local)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dynamix_ps.torch as dynamix
from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import open_run, settings_for
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.torch.join import with_loading

ROWS, BATCH = 40, 8


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(ROWS)), BATCH)  # in order


def shards() -> Any:
    return dynamix.shards(range(4), lambda shard: iter(range(10 * shard, 10 * shard + 10)), shuffle=False)


def attached(data: Any = None, state: Any = None, **settings: Any) -> Run:
    model = nn.Linear(1, 1)
    session = Session(settings_for(**{"sizes": (BATCH,), **settings}), "torch")
    data = with_loading(loader() if data is None else data, None, None, 0)
    run = open_run([model], [torch.optim.SGD(model.parameters(), lr=1e-6)], data, session)
    if state is not None:
        run.load_state_dict(state)
    return run


def trained(run: Run, batches: Iterable[Any], stop: int | None = None) -> list[int]:
    """Train on these batches and leave the loop after `stop` of them; returns the first sample of each."""
    firsts = []
    for batch in batches:
        rows = batch[0] if isinstance(batch, tuple | list) else batch
        run.optimizers[0].zero_grad()
        run.backward(run.models[0](rows[:, None].float()).mean())
        run.optimizers[0].step()
        firsts.append(int(rows[0]))
        if len(firsts) == stop:
            break
    return firsts


WHOLE = [0, 8, 16, 24, 32]


def test_each_call_of_epochs_has_passes_of_its_own() -> None:
    run = attached()
    for cell in range(3):
        assert [(number, run.epoch) for number in run.epochs(2) if trained(run, run.batches()) == WHOLE] == [
            (0, 2 * cell + 1),
            (1, 2 * cell + 2),
        ]
    run.close()
    assert run.iteration == 3 * 2 * len(WHOLE)


@pytest.mark.slow
def test_a_resumed_script_makes_its_calls_again_and_those_that_are_complete_give_nothing() -> None:
    def script(run: Run, until: int | None = None) -> Any:
        told = []
        for passes in (2, 1, 3):
            for number in run.epochs(passes):
                told.append((passes, number))
                for _ in run.batches():
                    run.backward(run.models[0](torch.ones(1, 1)).mean())
                    run.optimizers[0].step()
                    if run.iteration == until:
                        return told, run.state_dict()
        return told, run.iteration

    whole, iterations = script(attached())
    assert whole == [(2, 0), (2, 1), (1, 0), (3, 0), (3, 1), (3, 2)]
    for until in (3, 7, 10, 11, 15, 18, 29, 30):
        begun, state = script(attached(), until)
        rest, reached = script(attached(state=state))
        assert begun + rest[until % len(WHOLE) != 0 :] == whole
        assert reached == iterations


@pytest.mark.slow
def test_a_call_that_was_left_for_good_is_over_after_a_resume_too() -> None:
    def script(run: Run, until: int | None = None) -> Any:
        told = []
        for number in run.epochs(9):
            told.append(("first", number))
            trained(run, run.batches())
            if number == 2:
                break
        for number in run.epochs(2):
            told.append(("second", number))
            for _ in run.batches():
                run.backward(run.models[0](torch.ones(1, 1)).mean())
                run.optimizers[0].step()
                if run.iteration == until:
                    return told, run.state_dict()
        return told, None

    whole, _ = script(attached())
    assert whole[2:] == [("first", 2), ("second", 0), ("second", 1)]
    _, state = script(attached(), until=17)
    assert script(attached(state=state))[0] == whole[3:]


def test_a_loop_over_epochs_that_was_left_is_over() -> None:
    run = attached()
    for _ in run.epochs(3):
        trained(run, run.batches())
        break
    assert trained(run, run.batches(epochs=1)) == WHOLE
    with pytest.raises(TrainingError, match=r"needs epochs=\.\.\. or iterations"):
        next(run.batches())
    kept = run.epochs(3)
    next(kept)
    assert len([trained(run, run.batches()) for _ in run.epochs(2)]) == 2
    with pytest.raises(TrainingError, match=r"two loops over run\.epochs\(\)"):
        next(kept)


@pytest.mark.parametrize("data", [loader, shards, lambda: DataLoader(Numbers(), BATCH)])
def test_after_a_break_the_next_pass_begins_at_its_beginning(data: Any) -> None:
    run, seen = attached(data()), []
    for number in run.epochs(4):
        seen.append(trained(run, run.batches(), stop=3 if number in (0, 2) else None))
        assert (run.epoch, run.position_in_pass) == (number + 1, 0)
    run.close()
    assert seen == [WHOLE[:3], WHOLE, WHOLE[:3], WHOLE]
    assert run.progress == 1


def test_a_pass_that_is_left_with_its_last_batch_is_one_pass() -> None:
    run = attached()
    assert [trained(run, run.batches(), stop=5) for _ in run.epochs(2)] == [WHOLE, WHOLE]


def test_a_shorter_partner_of_zip_is_a_break() -> None:
    run = attached()
    for _ in run.epochs(2):
        assert trained(run, (batch for batch, _ in zip(run.batches(), range(2), strict=False))) == WHOLE[:2]
    assert run.iteration == 4


def test_looking_at_the_first_batch_leaves_no_pass() -> None:
    run = attached()
    next(iter(run.batches(epochs=1)))
    for number in run.epochs(2):
        next(iter(run.batches()))
        assert trained(run, run.batches()) == WHOLE
        assert run.epoch == number + 1


@pytest.mark.parametrize("data", [loader, shards])
def test_a_checkpoint_after_the_loop_that_was_left_is_at_the_next_pass(data: Any) -> None:
    run = attached(data())
    for _ in run.epochs(3):
        trained(run, run.batches(), stop=2)
        state = run.state_dict()
        break
    resumed = attached(data(), state)
    assert [(number, trained(resumed, resumed.batches())) for number in resumed.epochs(3)] == [(1, WHOLE), (2, WHOLE)]


def test_what_is_left_of_a_pass_counts_as_no_trained_samples() -> None:
    run, due = attached(), []
    for _ in run.epochs(3):
        for number, _ in enumerate(run.batches()):
            run.backward(run.models[0](torch.ones(1, 1)).mean())
            run.optimizers[0].step()
            due.append(run.every_samples(16))
            if number == 2:
                break
    assert due == [False, True] * 4 + [False]
    assert run.training.progress.trained_samples == 72
    resumed = attached(state=run.state_dict())
    assert resumed.training.progress.trained_samples == 72


def test_a_second_loop_in_one_pass_is_refused() -> None:
    run = attached()
    for stop in (None, 2):
        for _ in run.epochs(1):
            trained(run, run.batches(), stop)
            with pytest.raises(TrainingError, match=r"once more in one pass of run\.epochs\(\)"):
                next(run.batches())


def test_a_pass_without_a_loop_is_left_out() -> None:
    run = attached()
    assert [trained(run, run.batches()) if number else [] for number in run.epochs(2)] == [[], WHOLE]
    assert (run.epoch, run.iteration) == (2, 5)


def test_loops_of_one_pass_begin_anew_after_a_break_and_others_go_on() -> None:
    run = attached()
    assert trained(run, run.batches(epochs=1), stop=3) == [0, 8, 16]
    assert trained(run, run.batches(epochs=1)) == WHOLE
    assert run.epoch == 2
    assert trained(run, run.batches(epochs=3), stop=2) == [0, 8]
    assert trained(run, run.batches(epochs=4)) == WHOLE
    assert run.epoch == 4
    assert trained(run, run.batches(iterations=17)) == WHOLE[:2]
    assert trained(run, run.batches(iterations=20), stop=1) == [16]
    assert trained(run, run.batches(iterations=19)) == [24]
    assert trained(run, run.batches(epochs=6), stop=2) == [32, 0]
    assert trained(run, run.batches(epochs=6)) == WHOLE[1:]


def test_loops_by_iterations_go_on_in_the_middle_of_a_pass_of_epochs() -> None:
    run = attached()
    assert [trained(run, run.batches(iterations=2)) for _ in run.epochs(2)] == [[0, 8], [16, 24]]


def test_other_samples_than_planned_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = attached()
    receive = run.training.sums.receive
    monkeypatch.setattr(
        run.training.sums, "receive", lambda *args: receive(*args)._replace(worker_samples=(5,), samples=5)
    )
    with pytest.raises(TrainingError, match=r"have processed \(5,\) samples in iteration 0, the plan has \(8,\)"):
        for batch in run.batches(epochs=1):
            run.backward(run.models[0](batch[0][:, None].float()).mean())


def test_a_state_between_backward_and_step_owes_nothing_of_its_batch() -> None:
    """The batch is not done, so a run that goes on from this state has all of it."""
    run = attached()
    for batch in run.batches(epochs=1):
        run.backward(run.models[0](batch[0][:, None].float()).mean())
        run.training.data.stream.missed(run.training.now.batch.step, [0], run.iteration + 1)
        assert run.state_dict()["position"]["cursor"] == {"epoch": 0, "position": 0, "owed": []}
        run.optimizers[0].step()
        assert run.state_dict()["position"]["cursor"]["owed"] == [[0, 0, BATCH]]
        break


def test_samples_that_a_lost_worker_owes_are_dropped_with_the_pass() -> None:
    run = attached()
    for number in run.epochs(2):
        for batch in run.batches():
            run.backward(run.models[0](batch[0][:, None].float()).mean())
            run.optimizers[0].step()
            if number == 0:
                run.training.data.stream.missed(run.training.now.batch.step, [0], run.iteration)
                break
    assert run.iteration == 1 + len(WHOLE)
    assert run.state_dict()["position"]["cursor"] == {"epoch": 2, "position": 0, "owed": []}
