"""The script's DataLoader in one process: its order, its settings, its processes."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import dynamix_ps.torch as dynamix
from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from tests.unit.worker_hooks.local_run import open_run, settings_for
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.torch.data.loader import check_loader

ROWS = 50


class Rows(Dataset[Any]):
    """Items are (number of the sample, process that has loaded it)."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> Any:
        return number, os.getpid()


def attached(data: Any, folder: Path | None = None, **settings: Any) -> Run:
    model = nn.Linear(1, 1)
    session = Session(settings_for(folder, **{"sizes": None, **settings}), "torch")
    return open_run([model], [torch.optim.SGD(model.parameters(), lr=0.1)], data, session)


def numbers_of(run: Run, batches: Iterator[Any] | None = None, **limits: Any) -> list[list[int]]:
    """Train; returns the sample numbers of every batch."""
    seen = []
    for rows, *_ in batches or run.batches(**limits):
        run.optimizers[0].zero_grad()
        run.backward(run.models[0](rows[:, None].float()).mean())
        run.optimizers[0].step()
        seen.append(rows.tolist())
    return seen


def joined(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_pass_has_every_sample_once_in_batches_of_the_loaders_size(processes):
    run = attached(DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=processes))
    seen = numbers_of(run, epochs=2)
    assert [len(batch) for batch in seen] == 2 * ([8] * 5 + [5, 5])
    assert Counter(joined(seen)) == {number: 2 for number in range(ROWS)}
    assert joined(seen)[:ROWS] != joined(seen)[ROWS:]


def test_shuffling_is_that_of_a_data_set_alone():
    orders = []
    for data in (Rows(), DataLoader(Rows(), 8, shuffle=True), DataLoader(Rows(), 8, shuffle=True, num_workers=1)):
        run = attached(data, sizes=(8,))
        orders.append(joined(numbers_of(run, epochs=1)))
        run.close()
    assert orders[0] == orders[1] == orders[2]


def loaders() -> dict[str, DataLoader[Any]]:
    """With an order that the script has chosen; every call makes them anew."""
    weights = [1.0 + number % 7 for number in range(ROWS)]
    return {
        "in order": DataLoader(Rows(), 8),
        "generator": DataLoader(Rows(), 8, shuffle=True, generator=generator()),
        "generator, processes": DataLoader(Rows(), 8, shuffle=True, generator=generator(), num_workers=1),
        "weighted": DataLoader(Rows(), 8, sampler=WeightedRandomSampler(weights, 40, generator=generator())),
        "subset": DataLoader(Rows(), 8, sampler=SubsetRandomSampler(range(0, ROWS, 2), generator=generator())),
        "with replacement": DataLoader(
            Rows(), 8, sampler=RandomSampler(Rows(), replacement=True, num_samples=30, generator=generator())
        ),
        "drop_last": DataLoader(Rows(), 8, shuffle=True, generator=generator(), drop_last=True),
        "batch sampler": DataLoader(
            Rows(), batch_sampler=BatchSampler(RandomSampler(Rows(), generator=generator()), 8, drop_last=False)
        ),
        "own batch sampler": DataLoader(Rows(), batch_sampler=Buckets()),
    }


class Buckets(Sampler[list[int]]):
    """Batches of neighbours, in random order."""

    def __init__(self) -> None:
        self._random = random.Random(4)

    def __iter__(self) -> Iterator[list[int]]:
        buckets = [list(range(start, start + 10)) for start in range(0, ROWS, 10)]
        self._random.shuffle(buckets)
        return iter(buckets)

    def __len__(self) -> int:
        return ROWS // 10


@pytest.mark.parametrize("name", loaders())
def test_the_samples_come_as_in_plain_torch_pass_after_pass(name):
    plain = loaders()[name]
    expected = [number for _ in range(3) for rows, _ in plain for number in rows.tolist()]
    run = attached(loaders()[name], seed=9)
    assert joined(numbers_of(run, epochs=3)) == expected


@pytest.mark.parametrize("name", loaders())
def test_a_resume_in_mid_pass_goes_on_at_the_right_sample(name):
    run = attached(loaders()[name], seed=9)
    expected = joined(numbers_of(run, epochs=4))
    run.close()
    run = attached(loaders()[name], seed=9)
    begun = joined(numbers_of(run, iterations=run.training.data.stream.length * 2 // 8 + 2))
    state = run.state_dict()
    run.close()
    run = attached(loaders()[name], seed=9)
    run.load_state_dict(state)
    assert begun + joined(numbers_of(run, epochs=4)) == expected


def test_a_resume_with_another_order_is_refused():
    def state_of(run: Run) -> dict[str, Any]:
        numbers_of(run, iterations=2)
        return run.state_dict()

    run = attached(DataLoader(Rows(), 8, shuffle=True, generator=generator(3)))
    state = state_of(run)
    run.close()
    run = attached(DataLoader(Rows(), 8, shuffle=True, generator=generator(4)))
    with pytest.raises(TrainingError, match="sampler draws another order now"):
        run.load_state_dict(state)


class ByGlobalGenerators(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        numbers = list(range(ROWS))
        random.shuffle(numbers)
        return iter(np.array(numbers)[torch.randperm(ROWS).numpy()][np.random.permutation(ROWS)].tolist())

    def __len__(self) -> int:
        return ROWS


def test_a_sampler_with_the_global_generators_draws_by_the_seed_and_leaves_them_alone():
    orders = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        random.seed(state), np.random.seed(state), torch.manual_seed(state)
        run = attached(DataLoader(Rows(), 8, sampler=ByGlobalGenerators()), seed=seed)
        orders.append(joined(numbers_of(run, epochs=2)))
        run.close()
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:ROWS] != orders[0][ROWS:]
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    attached(DataLoader(Rows(), 8, sampler=ByGlobalGenerators())).close()
    torch.manual_seed(5)  # the model has drawn from it
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


class FewerEachTime(Sampler[int]):
    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        self.drawn += 1
        return iter(range(ROWS + 1 - self.drawn))


def test_a_pass_of_another_length_is_refused_when_it_begins():
    run = attached(DataLoader(Rows(), 8, sampler=FewerEachTime(), num_workers=1))
    with pytest.raises(TrainingError, match="FewerEachTime has drawn 49 samples for epoch 1 and 50 for the first"):
        numbers_of(run, epochs=2)
    assert run.epoch == 1


class OwnLoop(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class Names(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter("abcdefghijkl")

    def __len__(self) -> int:
        return 12


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(ROWS))


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (OwnLoop(Rows(), 8), "this OwnLoop: its class has an __iter__ of its own"),
        (DataLoader(Rows(), 8, sampler=DistributedSampler(Rows(), 2, 0)), "DistributedSampler out, and say shuffle="),
        (DataLoader(Rows(), None), "with batch_size=None it makes no batches"),
        (DataLoader(Rows(), 8, num_workers=2, in_order=False), "with in_order=False"),
        (DataLoader(Rows(), 8, num_workers=2, prefetch_factor=0), "with prefetch_factor=0"),
        (DataLoader(Rows(), 8, sampler=Names()), "the sampler Names names a sample by 'a', expected its number"),
        (DataLoader(Rows(), 8, sampler=Endless()), "the sampler Endless has not ended after 5000 samples"),
        (DataLoader(Rows(), 64), "the data set has 50 samples but one iteration takes 64"),
        (DataLoader(Rows(), 64, drop_last=True), "the data set has 0 samples but one iteration takes 64"),
    ],
)
def test_what_cannot_be_right_is_refused(loader, named):
    with pytest.raises(TrainingError, match=named):
        attached(loader)


def test_a_distributed_sampler_of_one_process_is_let_in():
    check_loader(DataLoader(Rows(), 8, sampler=DistributedSampler(Rows(), 1, 0)))


def start_process(number: int) -> None:
    get_worker_info().dataset.started = f"process {number}"


class Opened(Dataset[Any]):
    """A data set that can be used only where `start_process` has run; reused by every pass."""

    started = ""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> Any:
        if not self.started:
            raise RuntimeError("used outside of a loader's process")
        return number, os.getpid()


def column(samples: list[Any]) -> Any:
    return torch.tensor([number for number, _ in samples]), [process for _, process in samples]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_are_those_of_the_loader(context):
    loader = DataLoader(
        Opened(),
        8,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=start_process,
        collate_fn=column,
        multiprocessing_context=context,
        prefetch_factor=1,
        timeout=60,
    )
    run = attached(loader)
    processes = set()
    for _ in run.epochs(2):
        for rows, pids in run.batches():
            run.backward(run.models[0](rows[:, None].float()).mean())
            processes.update(pids)
    assert len(processes) == 2 and os.getpid() not in processes
    run.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


class WithDeathSignal(Rows):
    def __getitem__(self, number: int) -> Any:
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(found))  # PR_GET_PDEATHSIG
        return number, found.value


def test_processes_of_the_loader_end_with_the_training_process_however_it_ends():
    run = attached(DataLoader(WithDeathSignal(), 8, num_workers=1))
    _, signals = next(run.batches(epochs=1))
    assert set(signals.tolist()) == {signal.SIGKILL}


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_is_left_and_begun_again_goes_on_with_the_next_sample(persistent):
    run = attached(DataLoader(Rows(), 8, num_workers=2, prefetch_factor=3, persistent_workers=persistent))
    seen: list[int] = []
    for limit in (3, 4, 9):
        for rows, _ in run.batches(iterations=100):
            run.backward(run.models[0](rows[:, None].float()).mean())
            run.optimizers[0].step()
            seen += rows.tolist()
            if run.iteration == limit:
                break
    assert seen == [*range(ROWS), *range(len(seen) - ROWS)]


@pytest.mark.parametrize(("processes", "factor", "lag"), [(0, None, 0), (1, 1, 1), (2, 4, 8)])
def test_the_depth_of_the_loader_is_the_lag_of_a_plan(processes, factor, lag):
    run = attached(
        DataLoader(Rows(), 2, num_workers=processes, prefetch_factor=factor), mode="observe", window=20, prefetch=0
    )
    run.training.session.newest_plan = lambda: Plan(1, (3,)) if run.iteration >= 4 else None
    seen = numbers_of(run, iterations=16)
    assert [len(batch) for batch in seen[:16]] == ([2] * (5 + lag) + [3] * 16)[:16]


def test_a_depth_beyond_the_window_is_told(tmp_path):
    (tmp_path / "workers").mkdir()
    run = attached(DataLoader(Rows(), 2, num_workers=2), tmp_path, mode="observe", window=4)
    run.close()
    assert "4 batches are prepared ahead and a window has 4" in (tmp_path / "workers" / "worker-0.jsonl").read_text()


def test_prefetch_of_the_cluster_file_is_for_loaders_without_processes():
    run = attached(DataLoader(Rows(), 8, shuffle=True), prefetch=3)
    assert run.training.plans.lag == 3
    assert sorted(joined(numbers_of(run, epochs=1))) == list(range(ROWS))


def test_an_empty_share_gets_two_samples_that_the_sampler_names():
    run = attached(DataLoader(Rows(), 8, sampler=SubsetRandomSampler([7, 9, 11] * 5), num_workers=1))
    loaded = run.training.data.source.load(iter([np.empty(0, dtype=np.int64)]), 0)
    assert set(next(loaded)[0].tolist()) <= {7, 9, 11}
    loaded.close()


def test_random_numbers_of_loader_processes_follow_the_seed():
    def drawn(seed: int) -> list[float]:
        run = attached(DataLoader(RandomRows(), 8, num_workers=1), seed=seed)
        values = [value for _, batch in zip(range(3), run.batches(epochs=1), strict=False) for value in batch.tolist()]
        run.close()
        return values

    assert drawn(1) == drawn(1) != drawn(2)


class RandomRows(Rows):
    def __getitem__(self, number: int) -> Any:
        return random.random() + np.random.rand() + torch.rand(()).item()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_data_set_alone_takes_collate_fn_and_num_workers(processes):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = dynamix.attach(model, optimizer, Rows(), batch_size=8, collate_fn=column, num_workers=processes)
    rows, processes_seen = next(run.batches(epochs=1))
    run.close()
    assert len(rows) == 8 and isinstance(processes_seen, list)
    assert (os.getpid() in processes_seen) == (not processes)


@pytest.mark.parametrize("option", [{"collate_fn": column}, {"num_workers": 1}, {"batch_size": 4}])
def test_options_of_a_loader_belong_to_the_loader(option):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match=rf"attach\(\) got a DataLoader and {next(iter(option))}=..."):
        dynamix.attach(model, optimizer, DataLoader(Rows(), 8), **option)


# -- DataLoader(dataset, batch_sampler=run.batch_sampler()) -----------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_with_the_batch_sampler_of_the_run_gives_a_pass_per_loop(processes):
    dataset = Rows()
    run = attached(dataset, mode="observe", window=20, sizes=(8,))
    loader = DataLoader(
        dataset, batch_sampler=run.batch_sampler(), num_workers=processes, persistent_workers=processes > 0
    )
    assert len(loader) == 7
    passes = [joined(numbers_of(run, iter(loader))) for _ in run.epochs(2)]
    run.close()
    assert run.training.plans.lag == 2 * processes
    assert [sorted(one) for one in passes] == [list(range(ROWS))] * 2
    with pytest.raises(TrainingError, match="run of this batch sampler is closed"):
        iter(DataLoader(dataset, batch_sampler=run.batch_sampler()))


def test_a_loader_with_the_batch_sampler_needs_the_same_data_set():
    run = attached(DataLoader(Rows(), 8))
    with pytest.raises(TrainingError, match="another data set than attach"):
        iter(DataLoader(Rows(), batch_sampler=run.batch_sampler()))


# -- run.loader --------------------------------------------------------------------------------------------------------


def test_the_loader_of_a_run_gives_a_pass_per_loop_and_is_the_scripts_in_all_else():
    loader = DataLoader(Rows(), 8, shuffle=True)
    run = attached(loader)
    passes = [joined(numbers_of(run, iter(run.loader))) for _ in range(2)]
    assert [sorted(one) for one in passes] == [list(range(ROWS))] * 2
    assert len(run.loader) == len(loader) == 7
    assert run.loader.dataset is loader.dataset and run.loader.sampler is loader.sampler
    with pytest.raises(AttributeError, match="nonsense"):
        run.loader.nonsense  # noqa: B018
    run.close()


# -- evaluations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 1])
def test_evaluations_take_loaders(processes):
    run = attached(DataLoader(Rows(), 8))
    sizes = []

    def score(rows: Any, _: Any) -> dict[str, Any]:
        sizes.append(len(rows))
        return {"mean": rows.sum()}

    found = run.evaluate(DataLoader(Rows(), 20, shuffle=True, drop_last=True, num_workers=processes), score)
    assert found == {"mean": sum(range(ROWS)) / ROWS}
    assert sizes == [20, 20, 10]


def test_an_evaluation_leaves_a_shared_generator_alone():
    shared = generator()
    run = attached(DataLoader(Rows(), 8, shuffle=True, generator=shared))
    before = shared.get_state()
    subset = SubsetRandomSampler(range(10), generator=shared)
    assert run.evaluate(DataLoader(Rows(), 4, sampler=subset), lambda rows, _: {"mean": rows.sum()}) == {"mean": 4.5}
    assert torch.equal(shared.get_state(), before)


def test_tensor_data_sets_come_as_the_loader_gives_them():
    run = attached(DataLoader(TensorDataset(torch.arange(20.0)), 5))
    assert isinstance(next(run.batches(epochs=1)), list)  # not a tuple, as without a loader


def test_each_training_of_a_process_has_the_size_of_its_own_loader() -> None:
    """Without a cluster file, nobody but the script decides sizes."""
    for size in (25, 10):
        run = attached(DataLoader(Rows(), size))
        assert [len(numbers) for numbers in numbers_of(run, epochs=1)] == [size] * (ROWS // size)
        run.close()


def test_the_next_training_of_a_cluster_goes_on_with_the_newest_plan() -> None:
    first = attached(DataLoader(Rows(), 5), sizes=(25,))
    first.close()
    first.training.session.account.plan = Plan(1, (10,))
    run = attached(DataLoader(Rows(), 5), sizes=(25,))
    assert [len(numbers) for numbers in numbers_of(run, epochs=1)] == [10] * 5
