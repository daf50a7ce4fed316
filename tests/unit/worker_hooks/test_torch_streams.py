"""Shards and streams in one process: samples, ends of passes, resume, errors."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import dynamix_ps.torch as dynamix
from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import lines, open_run, settings_for
from worker_hooks.loading.batches import StreamWorker
from worker_hooks.loading.common_stream import CommonStream
from worker_hooks.loading.fingerprint import look_of
from worker_hooks.loading.shard_source import ShardSource
from worker_hooks.run import Run
from worker_hooks.sampling.sampler import Cursor
from worker_hooks.saved.checkpoint import Position
from worker_hooks.session import Session
from worker_hooks.torch.join import with_loading

LENGTHS = (20, 0, 7, 31, 1)


def numbered(lengths=LENGTHS, **options) -> Any:
    """Shards whose samples are numbers, 0 to the sum of `lengths`."""
    begins = [sum(lengths[:shard]) for shard in range(len(lengths))]
    return dynamix.shards(
        range(len(lengths)), lambda shard: iter(range(begins[shard], begins[shard] + lengths[shard])), **options
    )


def attached(data: Any, folder: Path | None = None, processes: int = 0, collate: Any = None, **settings: Any) -> Run:
    model = nn.Linear(1, 1)
    session = Session(settings_for(folder, **{"sizes": (8,), **settings}), "torch")
    data = with_loading(data, None, collate, processes)
    return open_run([model], [torch.optim.SGD(model.parameters(), lr=1e-6)], data, session)


def numbers_of(run: Run, stop: int | None = None, **limits: Any) -> list[list[int]]:
    """Train; returns the samples of every batch. `stop`: leave the loop after so many."""
    seen: list[list[int]] = []
    for rows in run.batches(**limits):
        if len(seen) == stop:
            break
        run.optimizers[0].zero_grad()
        run.backward(run.models[0](rows[:, None].float()).mean())
        run.optimizers[0].step()
        seen.append(rows.tolist())
    return seen


def joined(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def sizes_of(batches: list[list[int]]) -> list[int]:
    return [len(batch) for batch in batches]


def with_the_rest(size: int, samples: int) -> tuple[list[int], list[int]]:
    """The sizes of a pass: its last two batches are even where the reading thread has seen the end in time."""
    whole, rest = divmod(samples, size)
    two = size + rest
    return [size] * (whole - 1) + [two - two // 2, two // 2], [size] * whole + [rest]


def test_a_pass_has_every_sample_once_and_ends_known():
    run = attached(numbered())
    epochs = []
    for epoch in run.epochs(2):
        assert run.epoch == epoch
        epochs.append(numbers_of(run))
    assert run.epoch == 2 and run.progress == 1
    assert [sorted(joined(batches)) for batches in epochs] == 2 * [list(range(59))]
    assert joined(epochs[0]) != joined(epochs[1])
    assert sizes_of(epochs[0]) in with_the_rest(8, 59)


def test_without_shuffle_shards_come_in_their_order():
    run = attached(numbered(shuffle=False))
    assert joined(numbers_of(run, epochs=1)) == list(range(59))


@pytest.mark.parametrize("stop", [0, 1, 4, 7, 8, 11])
def test_a_batch_that_was_not_used_comes_again_and_a_new_run_goes_on(stop):
    first = attached(numbered())
    seen = numbers_of(first, stop, epochs=2)
    state = first.state_dict()
    gone_on = numbers_of(first, 2, epochs=2)
    first.close()
    resumed = attached(numbered())
    resumed.load_state_dict(state)
    rest = numbers_of(resumed, epochs=2)
    assert Counter(joined(seen) + joined(rest)) == {number: 2 for number in range(59)}
    assert gone_on[0] == rest[0]


def with_processes(lengths: tuple[int, ...]) -> Any:
    """Samples are (number, process that has read it; -1 where it would divide a shard further)."""
    begins = [sum(lengths[:shard]) for shard in range(len(lengths))]
    return dynamix.shards(
        range(len(lengths)),
        lambda shard: (
            (begins[shard] + number, -1 if get_worker_info() else os.getpid()) for number in range(lengths[shard])
        ),
    )


def test_processes_read_neighbours_of_the_list_and_a_resume_goes_on():
    lengths, seen, readers = (20, 0, 37, 31, 1), [], set()
    first = attached(with_processes(lengths), processes=2)
    for numbers, processes in first.batches(epochs=1):
        first.backward(first.models[0](numbers[:, None].float()).mean())
        first.optimizers[0].step()
        seen += numbers.tolist()
        readers |= set(processes.tolist())
        if first.iteration == 5:
            break
    state = first.state_dict()
    first.close()
    resumed = attached(with_processes(lengths), processes=2)
    resumed.load_state_dict(state)
    for numbers, _ in resumed.batches(epochs=1):
        resumed.backward(resumed.models[0](numbers[:, None].float()).mean())
        resumed.optimizers[0].step()
        seen += numbers.tolist()
    assert sorted(seen) == list(range(89))
    assert not readers & {os.getpid(), -1} and len(readers) >= 2


def test_the_same_processes_read_all_groups_of_all_passes_and_end_with_the_training():
    earlier = threading.enumerate()
    run = attached(with_processes((20, 0, 37, 31, 1)), processes=2)
    seen, readers = [], set()
    for numbers, processes in run.batches(epochs=3):
        run.backward(run.models[0](numbers[:, None].float()).mean())
        run.optimizers[0].step()
        seen += numbers.tolist()
        readers |= set(processes.tolist())
    (thread,) = [one for one in threading.enumerate() if one.name == "dynamix-shards" and one not in earlier]
    assert readers <= {child.pid for child in multiprocessing.active_children()}
    run.close()
    thread.join(30)
    assert Counter(seen) == {number: 3 for number in range(89)}
    assert len(readers) == 2
    assert not readers & {child.pid for child in multiprocessing.active_children()}


def test_random_numbers_in_processes_follow_seed_epoch_and_shard():
    def run_of(epochs):
        shards = dynamix.shards(
            range(4), lambda shard: iter([shard + random.random() for _ in range(8)]), shuffle=False
        )
        run = attached(shards, processes=2)
        seen = [sorted(joined(numbers_of(run))) for _ in run.epochs(epochs)]
        run.close()
        return seen

    first, second = run_of(2)
    assert run_of(1) == [first]
    assert len({round(number % 1, 9) for number in first + second}) == 64


def test_a_group_is_read_in_the_same_order_whatever_was_read_before():
    shards = with_loading(with_processes((20, 0, 37, 31, 1)), None, None, 2).dataset

    def numbers(group):
        return [number for number, _ in shards.open(group)]

    first = numbers(0)
    left = shards.open(1)
    next(left)
    left.close()
    assert numbers(2) == [88]
    assert numbers(0) == first == list(range(20))
    assert numbers(1)[:40] == [*range(20, 36), *range(57, 73), *range(36, 44)]
    shards.close()


def test_a_resume_in_a_pass_needs_the_same_list_of_shards():
    first = attached(numbered(), processes=2)
    numbers_of(first, 3, epochs=1)
    state = first.state_dict()
    first.close()
    for shards, processes, expected in [
        (numbered((20, 0, 7, 31, 1, 2, 2)), 2, "over 3 shards, there are 4 now"),
        (numbered(), 3, "over 3 shards, there are 2 now"),
        (dynamix.shards([4, 3, 2, 1, 0], lambda _: iter(range(9))), 2, "over other shards"),
    ]:
        other = attached(shards, processes=processes)
        with pytest.raises(TrainingError, match=expected):
            other.load_state_dict(state)
        other.close()


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (["/a/1.tar", "/a/2.tar"], False),
        (["/b/0.tar", Path("/b/1.tar")], True),
        ([("/a/0.tar", 0), ("/a/1.tar", 0)], False),
        ([0, 1], False),
    ],
)
def test_lists_of_shards_are_told_apart(other, same):
    shards = dynamix.shards(["/a/0.tar", "/a/1.tar"], iter)
    assert (dynamix.shards(other, iter).code() == shards.code()) == same
    assert with_loading(shards, None, None, 2).dataset.code() != shards.code()


def test_batches_whose_gradients_are_in_no_sum_come_again_after_a_resume():
    run = attached(numbered(shuffle=False))
    for rows in run.batches(epochs=2):
        if run.iteration == 2:
            run.models[0](rows[:, None].float()).mean().backward()
            break
        run.backward(run.models[0](rows[:, None].float()).mean())
        run.optimizers[0].step()
    assert run.state_dict()["position"]["cursor"] == {"epoch": 0, "position": 16, "owed": []}
    assert numbers_of(run, 1, epochs=2) == [list(range(24, 32))]
    assert run.state_dict()["position"]["cursor"] == {"epoch": 0, "position": 32, "owed": []}


def test_many_tiny_shards_make_whole_batches():
    run = attached(numbered((1,) * 50))
    batches = numbers_of(run, epochs=1)
    assert sorted(joined(batches)) == list(range(50))
    assert sizes_of(batches) in with_the_rest(8, 50)


def test_samples_are_collated_and_their_faults_named():
    run = attached(dynamix.shards(["a", "b"], lambda name: iter([torch.zeros(2), torch.zeros(3)])))
    with pytest.raises(TrainingError, match=r"has the shapes \(2,\), \(3,\)"):
        next(iter(run.batches(epochs=1)))


def test_an_error_of_the_script_names_the_shard():
    def broken(name: str) -> Any:
        yield from range(40)
        if name == "b":
            raise OSError("disk gone")

    run = attached(dynamix.shards(["a", "b"], broken))
    with pytest.raises(OSError, match="disk gone") as raised:
        numbers_of(run, epochs=1)
    assert "shard 1 ('b')" in " ".join(raised.value.__notes__)


def test_shards_without_samples_are_refused():
    run = attached(numbered((0, 0)))
    with pytest.raises(TrainingError, match="no shard of 2 has a sample"):
        next(iter(run.batches(epochs=1)))


@pytest.mark.parametrize(("shards", "expected"), [("*.tar", "got a str"), ([], "empty list"), (iter("ab"), "a list")])
def test_what_is_no_list_of_shards_is_refused(shards, expected):
    with pytest.raises(TrainingError, match=expected):
        dynamix.shards(shards, iter)


def test_progress_follows_the_shards_in_the_first_pass_and_then_the_samples():
    run = attached(numbered((16,) * 10))
    told = []
    for rows in run.batches(epochs=2):
        run.backward(run.models[0](rows[:, None].float()).mean())
        run.optimizers[0].step()
        told.append(run.progress)
    assert told == sorted(told) and told[-1] == 1
    assert told[19] == 0.5 and told[29] == 0.75


def test_an_evaluation_over_shards_scores_every_sample_once(tmp_path):
    (tmp_path / "workers").mkdir()
    run = attached(numbered(), tmp_path, collate=lambda rows: -torch.tensor(rows))
    sizes = []

    def score(rows):
        sizes.append(len(rows))
        return {"mean": rows.sum(), "largest": (rows == -58).sum() * 59}

    for _ in run.batches(iterations=1):
        assert run.evaluate(numbered(), score, batch_size=25) == {"mean": -29.0, "largest": 1.0}
    assert sizes == [25, 25, 9]
    run.close()
    (told,) = [line for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert told["samples"] == 59


@pytest.mark.parametrize("shares", [(1,), (3, 2), (1, 0, 1), (5, 1, 1, 1, 1, 1, 1)])
def test_every_shard_is_in_one_part(shares):
    source = ShardSource(numbered(), torch.tensor)
    parts = [list(source.part(shares, range(rank, rank + 1), 8)[1]) for rank in range(len(shares))]
    assert sorted(row for part in parts for size, rows in part for row in rows.tolist()[:size]) == list(range(59))
    for part in parts:
        assert all(0 < size == len(rows) <= 8 for size, rows in part) or [size for size, _ in part] == [0]


def test_an_evaluation_over_shards_without_samples_is_refused():
    run = attached(numbered())
    with pytest.raises(TrainingError, match="no shard of 2 has a sample"):
        run.evaluate(numbered((0, 0)), lambda rows: rows.sum())


def test_evaluations_over_streams_and_batch_samplers_need_sample_numbers():
    run = attached(numbered())
    with pytest.raises(TrainingError, match="a stream, whose samples have no numbers"):
        run.evaluate(Stream(), lambda rows: rows.sum())
    with pytest.raises(TrainingError, match="a stream has none"):
        run.batch_sampler()
    with pytest.raises(TypeError, match="no len"):
        len(run.loader)


class Stream(IterableDataset):
    """Numbers below `length`, then the pass is over."""

    def __init__(self, length: int | None = 59) -> None:
        self.length, self.epochs = length, []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Any:
        info = get_worker_info()
        parts = (info.id, info.num_workers) if info else (0, 1)
        numbers = itertools.count() if self.length is None else range(self.length)
        return itertools.islice(numbers, parts[0], None, parts[1])


def test_a_stream_is_taken_as_it_is_pass_after_pass():
    stream = Stream()
    run = attached(stream)
    batches = [numbers_of(run) for _ in run.epochs(2)]
    assert [joined(one) for one in batches] == 2 * [list(range(59))]
    assert sizes_of(batches[1]) in with_the_rest(8, 59)
    assert stream.epochs == [0, 1]


def test_an_endless_stream_ends_by_iterations():
    run = attached(Stream(None))
    assert joined(numbers_of(run, iterations=5)) == list(range(40))
    assert run.progress == 1 and run.epoch == 0


@pytest.mark.parametrize("stop", [0, 4, 7, 8, 11])
def test_a_stream_is_resumed_at_its_sample(stop):
    first = attached(Stream())
    seen = numbers_of(first, stop, epochs=2)
    state = first.state_dict()
    gone_on = numbers_of(first, 2, epochs=2)
    first.close()
    resumed = attached(Stream())
    resumed.load_state_dict(state)
    rest = numbers_of(resumed, epochs=2)
    assert joined(seen) + joined(rest) == 2 * list(range(59))
    assert gone_on == rest[: len(gone_on)]


def rows():
    return torch.arange(59)


@pytest.mark.parametrize("other", [Stream, numbered, rows])
@pytest.mark.parametrize("saved", [Stream, numbered, rows])
def test_a_resume_in_a_pass_needs_the_same_kind_of_data(saved, other):
    first = attached(saved())
    numbers_of(first, 3, epochs=1)
    state = first.state_dict()
    first.close()
    resumed = attached(other())
    if saved is other:
        resumed.load_state_dict(state)
        assert sum(map(len, numbers_of(resumed, epochs=1))) == 59 - 24
    else:
        with pytest.raises(TrainingError, match="resume with the same"):
            resumed.load_state_dict(state)


def test_a_loader_of_a_stream_keeps_its_processes_and_collate_fn():
    loader = DataLoader(Stream(), batch_size=10, num_workers=2, collate_fn=lambda rows: -torch.tensor(rows))
    run = attached(loader, sizes=None)
    batches = numbers_of(run, epochs=1)
    assert sorted(joined(batches), reverse=True) == [-number for number in range(59)]
    assert [len(batch) for batch in batches] == [10] * 5 + [9]


@pytest.mark.parametrize(("length", "batches"), [(59, 7), (56, 7), (9, 1), (8, 1), (16, 2)])
def test_drop_last_leaves_out_what_makes_no_whole_batch(length, batches):
    run = attached(DataLoader(Stream(length), batch_size=8, drop_last=True))
    for epoch in run.epochs(2):
        assert run.epoch == epoch
        assert joined(numbers_of(run)) == list(range(8 * batches))
    assert run.progress == 1 and run.iteration == 2 * batches


def test_drop_last_needs_a_whole_batch():
    run = attached(DataLoader(Stream(7), batch_size=8, drop_last=True))
    with pytest.raises(TrainingError, match="has 7 samples in epoch 0, fewer than one iteration takes"):
        next(iter(run.batches(epochs=1)))


def test_batches_of_a_stream_are_pinned_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("worker_hooks.torch.data.batches.pin_memory", lambda batch: -batch)
    run = attached(DataLoader(Stream(), batch_size=8, pin_memory=True))
    assert joined(numbers_of(run, epochs=1)) == [-number for number in range(59)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": None}, "let the data set give samples"),
        ({"batch_size": 4, "num_workers": 1, "in_order": False}, "leave in_order out"),
    ],
)
def test_loaders_of_a_stream_that_cannot_be_cut_anew_are_refused(options, expected):
    with pytest.raises(TrainingError, match=expected):
        attached(DataLoader(Stream(), **options))


def test_streams_that_differ_between_workers_are_named():
    stream = CommonStream(Stream, list, Position(0, Cursor(), Plan(0, (4, 4)), 0, 0), StreamWorker(0, 3, 1, None, None))
    same, other = look_of((torch.ones(3), 5)), look_of((torch.ones(3), 6))
    nearly, far = look_of((torch.ones(3) * (1 + 1e-6), 5)), look_of((torch.ones(3) * 2, 5))
    stream.told([same, same, nearly], range(3))
    for odd in (other, far, look_of({"x": torch.ones(3)})):
        with pytest.raises(TrainingError, match="stream of worker 2 gives other samples"):
            stream.told([same, same, odd], range(3))
    stream.close()
