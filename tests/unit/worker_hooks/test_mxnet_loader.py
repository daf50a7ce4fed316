"""The script's Gluon DataLoader in one process: its order, its settings, its processes and threads."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynamix_ps.numpy_names  # noqa: F401

mx = pytest.importorskip("mxnet", reason="MXNet was left out of this environment")

from mxnet import autograd, gluon  # noqa: E402
from mxnet.gluon.data import BatchSampler, DataLoader, FilterSampler, RandomSampler, Sampler  # noqa: E402

from dynamix_ps.errors import TrainingError  # noqa: E402
from dynamix_ps.messages import Plan  # noqa: E402
from tests.unit.worker_hooks.local_run import settings_for  # noqa: E402
from tests.unit.worker_hooks.mxnet_run import open_run  # noqa: E402
from worker_hooks.mxnet.join import attach  # noqa: E402
from worker_hooks.mxnet.loader import GluonLoader  # noqa: E402
from worker_hooks.run import Run  # noqa: E402
from worker_hooks.session import Session  # noqa: E402

ROWS = 50


class Rows(gluon.data.Dataset):
    """Items are (number of the sample, process that has loaded it)."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> Any:
        if number >= ROWS:
            raise IndexError(number)  # FilterSampler goes on until then
        return number, os.getpid()


def attached(data: Any, folder: Path | None = None, **settings: Any) -> Run:
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    return open_run(net, trainer, data, Session(settings_for(folder, **{"sizes": None, **settings}), "mxnet"))


def step(run: Run, rows: Any) -> None:
    with autograd.record():
        loss = run.adapter.net(rows.astype(np.float32).expand_dims(1)).mean()
    run.backward(loss)
    run.adapter.trainer.step(1)


def numbers_of(run: Run, **limits: Any) -> list[list[int]]:
    """Train; returns the sample numbers of every batch."""
    seen = []
    for rows, *_ in run.batches(**limits):
        step(run, rows)
        seen.append(rows.asnumpy().tolist())
    return seen


def joined(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


WORKERS = {"none": {}, "processes": {"num_workers": 2}, "threads": {"num_workers": 2, "thread_pool": True}}


@pytest.mark.parametrize("workers", WORKERS)
def test_a_pass_has_every_sample_once_in_batches_of_the_loaders_size(workers):
    run = attached(DataLoader(Rows(), 8, shuffle=True, **WORKERS[workers]))
    seen = numbers_of(run, epochs=2)
    assert [len(batch) for batch in seen] == 2 * ([8] * 5 + [5, 5])
    assert Counter(joined(seen)) == {number: 2 for number in range(ROWS)}
    assert joined(seen)[:ROWS] != joined(seen)[ROWS:]


@pytest.mark.slow
def test_shuffling_is_that_of_a_data_set_alone():
    orders = []
    for data in (Rows(), DataLoader(Rows(), 8, shuffle=True), DataLoader(Rows(), 8, shuffle=True, num_workers=1)):
        run = attached(data, sizes=(8,))
        orders.append(joined(numbers_of(run, epochs=1)))
        run.close()
    assert orders[0] == orders[1] == orders[2]


class Buckets(Sampler):
    """Batches of neighbours, in an order of its own."""

    def __init__(self) -> None:
        self._random = random.Random(4)

    def __iter__(self) -> Iterator[list[int]]:
        buckets = [list(range(start, start + 10)) for start in range(0, ROWS, 10)]
        self._random.shuffle(buckets)
        return iter(buckets)

    def __len__(self) -> int:
        return ROWS // 10


class Shuffled(Sampler):
    def __init__(self) -> None:
        self._random = random.Random(4)

    def __iter__(self) -> Iterator[int]:
        return iter(self._random.sample(range(ROWS), ROWS))

    def __len__(self) -> int:
        return ROWS


LOADERS: dict[str, Callable[[], DataLoader]] = {  # with an order that the script has chosen
    "in order": lambda: DataLoader(Rows(), 8),
    "part": lambda: DataLoader(Rows(), 8, sampler=gluon.data.SequentialSampler(20, start=7)),
    "filter": lambda: DataLoader(Rows(), 8, sampler=FilterSampler(lambda item: item[0] % 3 == 0, Rows())),
    "own": lambda: DataLoader(Rows(), 8, sampler=Shuffled(), num_workers=1),
    "rollover": lambda: DataLoader(Rows(), 8, sampler=Shuffled(), last_batch="rollover"),
    "own batch sampler": lambda: DataLoader(Rows(), batch_sampler=Buckets()),
    "batch sampler": lambda: DataLoader(Rows(), batch_sampler=BatchSampler(Shuffled(), 10, "keep"), num_workers=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_the_samples_come_as_in_plain_gluon_pass_after_pass(name):
    plain = LOADERS[name]()
    expected = [number for _ in range(3) for rows, _ in plain for number in rows.asnumpy().tolist()]
    run = attached(LOADERS[name](), seed=9)
    seen = joined(numbers_of(run, epochs=3))
    assert seen[: len(expected)] == expected  # what plain Gluon rolls over to a fourth pass is here already
    assert len(seen) == 3 * run.training.data.stream.length


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_a_resume_in_mid_pass_goes_on_at_the_right_sample(name):
    run = attached(LOADERS[name](), seed=9)
    expected = joined(numbers_of(run, epochs=4))
    run.close()
    run = attached(LOADERS[name](), seed=9)
    begun = joined(numbers_of(run, iterations=run.training.data.stream.length * 2 // 8 + 2))
    state = run.state_dict()
    run.close()
    run = attached(LOADERS[name](), seed=9)
    run.load_state_dict(state)
    assert begun + joined(numbers_of(run, epochs=4)) == expected


@pytest.mark.slow
def test_a_last_batch_that_is_discarded_is_what_remains_beyond_the_global_batch():
    run = attached(DataLoader(Rows(), 8, last_batch="discard"))
    assert [len(batch) for batch in numbers_of(run, epochs=2)] == 2 * [8] * 6


class ByGlobalGenerators(Sampler):
    def __iter__(self) -> Iterator[int]:
        numbers = list(range(ROWS))
        random.shuffle(numbers)
        return iter(np.array(numbers)[np.random.permutation(ROWS)])

    def __len__(self) -> int:
        return ROWS


@pytest.mark.slow
def test_a_sampler_with_the_global_generators_draws_by_the_seed_and_leaves_them_alone():
    orders = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        random.seed(state), np.random.seed(state)
        run = attached(DataLoader(Rows(), 8, sampler=ByGlobalGenerators()), seed=seed)
        orders.append(joined(numbers_of(run, epochs=2)))
        run.close()
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:ROWS] != orders[0][ROWS:]
    before = random.getstate(), np.random.get_state()[1].tolist()
    run = attached(DataLoader(Rows(), 8, sampler=RandomSampler(20)), seed=seed)
    assert len(numbers_of(run, epochs=1)[0]) == 8
    assert before[0] == random.getstate() and before[1] == np.random.get_state()[1].tolist()


class SplitSampler(Sampler):
    """As in many scripts for several workers."""

    def __init__(self, length: int, num_parts: int, part_index: int) -> None:
        self.part_len = length // num_parts
        self.start = self.part_len * part_index

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.start + self.part_len))

    def __len__(self) -> int:
        return self.part_len


class OwnLoop(DataLoader):
    def __iter__(self) -> Any:
        return super().__iter__()


class Names(Sampler):
    def __iter__(self) -> Iterator[Any]:
        return iter("abcdefghijkl")


class Endless(Sampler):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (lambda: OwnLoop(Rows(), 8), "this OwnLoop: its class has an __iter__ of its own"),
        (lambda: DataLoader(Rows(), 8, sampler=SplitSampler(ROWS, 2, 0)), "gives each process a part of the data"),
        (lambda: DataLoader(Rows(), 8, auto_reload=True), "leave auto_reload out"),
        (lambda: DataLoader(Rows(), 8, sampler=Names()), "the sampler Names names a sample by 'a', expected its numb"),
        (lambda: DataLoader(Rows(), 8, sampler=Endless()), "the sampler Endless has not ended after 5000 samples"),
        (lambda: DataLoader(iter(range(9)), 8, sampler=RandomSampler(9)), "a stream has no sample numbers"),
        (lambda: DataLoader(Rows(), 64), "the data set has 50 samples but one iteration takes 64"),
        (lambda: gluon.data.dataloader.DataLoaderV1(Rows(), 8), "take batches out of a DataLoaderV1"),
    ],
)
def test_what_cannot_be_right_is_refused(loader, named):
    with pytest.raises(TrainingError, match=named):
        attached(loader())


@pytest.mark.slow
def test_a_split_sampler_of_one_process_is_let_in():
    attached(DataLoader(Rows(), 8, sampler=SplitSampler(ROWS, 1, 0)))


@pytest.mark.slow
def test_options_of_a_loader_belong_to_the_loader():
    net = gluon.nn.Dense(1)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with pytest.raises(TrainingError, match=r"attach\(\) got a DataLoader and batch_size=..."):
        attach(net, trainer, DataLoader(Rows(), 8), batch_size=4)


class Found(Rows):
    def __getitem__(self, number: int) -> Any:
        return number, os.getpid(), threading.get_ident()


def column(samples: list[Any]) -> Any:
    numbers, processes, threads = zip(*samples, strict=True)
    return mx.nd.array(numbers), set(processes), set(threads)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_made_where_and_how_the_loader_says(workers):
    loader = DataLoader(Found(), 8, batchify_fn=column, **WORKERS[workers])
    run = attached(loader)
    processes, threads = set(), set()
    for rows, pids, idents in run.batches(epochs=2):
        step(run, rows)
        processes |= pids
        threads |= idents
    if workers == "processes":
        assert processes == {process.pid for process in loader._worker_pool._pool}
    else:
        assert processes == {os.getpid()}
        assert threads <= {thread.ident for thread in threading.enumerate()}
        assert (threading.get_ident() in threads) == (workers == "none")


@pytest.mark.slow
def test_shapes_that_gluon_learns_from_the_first_batch_come_from_the_loader():
    net = gluon.nn.Dense(1)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    data = gluon.data.ArrayDataset(np.ones((20, 3), dtype=np.float32), np.ones(20))
    double = lambda samples: mx.nd.array([[*row, *row] for row, _ in samples])  # noqa: E731
    open_run(net, trainer, DataLoader(data, 4, batchify_fn=double), Session(settings_for(sizes=None), "mxnet"))
    assert net.weight.shape == (1, 6)


@pytest.mark.slow
def test_shapes_of_a_hybrid_net_come_from_processes_too():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(2), gluon.nn.Dense(1))
    net.initialize()
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    data = gluon.data.ArrayDataset(np.ones((20, 3), dtype=np.float32), np.ones(20))
    open_run(net, trainer, DataLoader(data, 4, num_workers=1), Session(settings_for(sizes=None), "mxnet"))
    assert net[0].weight.shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_a_loop_that_is_left_and_begun_again_goes_on_with_the_next_sample(workers):
    loader = DataLoader(Rows(), 8, **WORKERS[workers])
    run = attached(loader)
    seen: list[int] = []
    for limit in (3, 4, 9):
        for rows, _ in run.batches(iterations=100):
            step(run, rows)
            seen += rows.asnumpy().tolist()
            if run.iteration == limit:
                break
        if loader._worker_pool is not None:  # nothing is left behind
            assert all(task.ready() for task in list(loader._worker_pool._cache.values()))
    assert seen == [*range(ROWS), *range(len(seen) - ROWS)]


@pytest.mark.parametrize(
    ("options", "lag"),
    [
        ({"prefetch": 9}, 0),
        ({"num_workers": 2}, 4),
        ({"num_workers": 1, "prefetch": 0}, 0),
        ({"num_workers": 1, "prefetch": 3, "thread_pool": True}, 3),
    ],
)
def test_the_depth_of_the_loader_is_the_lag_of_a_plan(options, lag):
    run = attached(DataLoader(Rows(), 2, **options), mode="observe", window=20, prefetch=0)
    run.training.session.newest_plan = lambda: Plan(1, (3,)) if run.iteration >= 4 else None
    seen = numbers_of(run, iterations=16)
    assert [len(batch) for batch in seen] == ([2] * (5 + lag) + [3] * 16)[:16]


def test_prefetch_of_the_cluster_file_is_for_loaders_without_processes():
    run = attached(DataLoader(Rows(), 8, shuffle=True), prefetch=3)
    assert run.training.plans.lag == 3
    assert sorted(joined(numbers_of(run, epochs=1))) == list(range(ROWS))


def test_an_empty_share_gets_two_samples_that_the_sampler_names():
    run = attached(DataLoader(Rows(), 8, sampler=FilterSampler(lambda item: item[0] in range(7, 40, 2), Rows())))
    assert run.training.data.source.fetch(np.empty(0, dtype=np.int64))[0].asnumpy().tolist() == [7, 9]


class RandomRows(Rows):
    def __getitem__(self, number: int) -> Any:
        return random.random(), np.random.rand(), mx.nd.random.uniform(shape=1).asscalar()


class WithDeathSignal(Rows):
    def __getitem__(self, number: int) -> Any:
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(found))  # PR_GET_PDEATHSIG
        return number, found.value


def test_processes_of_the_loader_end_with_the_training_process_however_it_ends():
    run = attached(DataLoader(WithDeathSignal(), 8, num_workers=1))
    _, signals = next(run.batches(epochs=1))
    assert set(signals.asnumpy().tolist()) == {signal.SIGKILL}


@pytest.mark.slow
def test_random_numbers_of_loader_processes_follow_the_seed():
    def drawn(seed: int) -> list[list[float]]:
        run = attached(DataLoader(RandomRows(), 8, num_workers=2), seed=seed)
        batches = itertools.islice(run.batches(epochs=1), 4)
        values = np.concatenate([np.stack([one.asnumpy() for one in batch]) for batch in batches], axis=1).tolist()
        run.close()
        return values

    first = drawn(1)
    assert first == drawn(1)
    assert all(len(set(kind)) == 32 for kind in first), "two processes have drawn alike"
    assert all(one != other for one, other in zip(first, drawn(2), strict=True))


class Ends(Rows):
    def __getitem__(self, number: int) -> Any:
        if number == 30:
            os._exit(1)
        return number


class Waits(Rows):
    def __getitem__(self, number: int) -> Any:
        if number == 30:
            threading.Event().wait()
        return number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (Ends(), "a process of this DataLoader has ended, and a batch with it"),
        (Waits(), "this DataLoader has given no batch for 2 s, its timeout"),
    ],
)
def test_a_batch_that_does_not_come_is_an_error(dataset, told):
    loader = DataLoader(dataset, 8, num_workers=1, timeout=2)
    run = attached(loader)
    with pytest.raises(TrainingError, match=told):
        for rows in run.batches(epochs=1):
            step(run, rows)
    assert run.iteration <= 3
    assert len(loader._worker_pool._pool) == 1  # nothing was forked beside the training


def test_a_process_that_is_ending_has_ended(monkeypatch):
    run = attached(loader := DataLoader(Rows(), 8, num_workers=1))

    def lost(found):
        loader._worker_pool._pool[0].kill()
        raise ConnectionResetError

    monkeypatch.setattr("worker_hooks.mxnet.loader.pickle.loads", lost)
    with pytest.raises(TrainingError, match="a process of this DataLoader has ended"):
        next(iter(run.batches(epochs=1)))


@pytest.mark.parametrize("held", ["to take a task", "to give a batch"])
def test_a_loader_ends_although_a_killed_process_held_a_lock(held):
    attached(loader := DataLoader(Rows(), 8, num_workers=1))
    pool = loader._worker_pool
    pool._pool[0].kill()
    pool._pool[0].join()
    lock = pool._inqueue._rlock if held == "to take a task" else pool._outqueue._wlock
    lock.acquire(block=False)
    pool.terminate()
    assert not any(one.is_alive() for one in (pool._worker_handler, pool._task_handler, pool._result_handler))


class Broken(Rows):
    def __getitem__(self, number: int) -> Any:
        if number == 30:
            raise ValueError("sample 30 is damaged")
        return number


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_data_set_comes_out(workers):
    run = attached(DataLoader(Broken(), 8, **WORKERS[workers]))
    with pytest.raises(ValueError, match="sample 30 is damaged"):
        for rows in run.batches(epochs=1):
            step(run, rows)
    assert run.iteration == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_evaluations_take_loaders(workers):
    run = attached(DataLoader(Rows(), 8))
    sizes = []

    def score(rows: Any, _: Any) -> dict[str, Any]:
        sizes.append(len(rows))
        return {"mean": rows.sum()}

    loader = DataLoader(Rows(), 20, shuffle=True, last_batch="discard", **WORKERS[workers])
    assert run.evaluate(loader, score) == {"mean": sum(range(ROWS)) / ROWS}
    assert sizes == [20, 20, 10]


def test_a_loader_serves_several_trainings():
    loader = DataLoader(Rows(), 8, num_workers=1)
    for _ in range(2):
        run = attached(loader)
        assert joined(numbers_of(run, epochs=1)) == list(range(ROWS))
        run.close()
    assert [number for rows, _ in loader for number in rows.asnumpy().tolist()] == list(range(ROWS))


@pytest.mark.slow
def test_a_source_knows_the_loaders_size():
    assert GluonLoader(DataLoader(Rows(), batch_sampler=BatchSampler(Shuffled(), 10)), 0, 1).batch_size == 10
    run = attached(DataLoader(Rows(), batch_sampler=Buckets()))
    assert run.batch_size == 10
