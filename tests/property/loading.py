"""Loaders as data: what hypothesis draws, and a training over one of them in a worker."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dynamix_ps.messages import Plan
from tests.property.pool import answer_all

ORDERS = ("shuffle", "generator", "in order", "buckets")


class Numbers(Dataset[Any]):
    """Every sample is its number."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> int:
        return number


class Buckets(torch.utils.data.Sampler[list[int]]):
    """Batches of neighbours in random order, by the global generator."""

    def __init__(self, length: int) -> None:
        self.buckets = [list(range(first, min(first + 7, length))) for first in range(0, length, 7)]

    def __iter__(self) -> Any:
        return iter([self.buckets[place] for place in torch.randperm(len(self.buckets)).tolist()])

    def __len__(self) -> int:
        return len(self.buckets)


@dataclass(frozen=True)
class Loading:
    """A training that is left after `stop` iterations and gone on with by new runs."""

    samples: int
    order: str
    processes: tuple[int, ...]  # of every worker's loader
    prefetch: int
    persistent: bool
    own_sampler: bool  # whether the loader has `run.batch_sampler()`
    sizes: tuple[int, ...]
    plans: tuple[tuple[int, tuple[int, ...]], ...]  # (iterations, batch sizes from then on, after the lag)
    stop: int
    epochs: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def loader_of(loading: dict[str, Any], rank: int) -> DataLoader[Any]:
    dataset, processes = Numbers(loading["samples"]), loading["processes"][rank]
    options: dict[str, Any] = {"num_workers": processes}
    if processes:
        options |= {"prefetch_factor": loading["prefetch"], "persistent_workers": loading["persistent"]}
    if loading["order"] == "buckets":
        return DataLoader(dataset, batch_sampler=Buckets(len(dataset)), **options)
    if loading["order"] == "generator":
        options["generator"] = torch.Generator().manual_seed(1)
    return DataLoader(dataset, 4, shuffle=loading["order"] != "in order", **options)


def train(loading: dict[str, Any], state: dict[str, Any] | None) -> dict[str, Any]:
    """Train from `state`, if there is one, otherwise from the begin until `stop` iterations are complete.

    Returns the samples of this worker, one list of batches per epoch, and the state at the end.
    """
    import dynamix_ps.torch as dynamix

    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = loader_of(loading, int(os.environ["DMLC_WORKER_ID"]))
    run = dynamix.attach(model, optimizer, loader.dataset if loading["own_sampler"] else loader)
    if state:
        run.load_state_dict(state)
    plans = [
        (after, Plan(number, tuple(sizes)))
        for number, (after, sizes) in enumerate([(0, loading["sizes"]), *loading["plans"]], 1)
    ]
    run.training.session.newest_plan = lambda: [plan for after, plan in plans if after <= run.iteration][-1]
    if loading["own_sampler"]:
        options = {name: getattr(loader, name) for name in ("num_workers", "prefetch_factor", "persistent_workers")}
        loader = DataLoader(loader.dataset, batch_sampler=run.batch_sampler(), **options)
    seen: list[list[list[int]]] = [[] for _ in range(loading["epochs"])]
    stopped: dict[str, Any] = {}
    for epoch in run.epochs(loading["epochs"]):
        for batch in loader if loading["own_sampler"] else run.batches():
            seen[epoch].append(batch[: run.training.now.batch.samples].tolist())
            optimizer.zero_grad()
            run.backward(model(batch[:, None].to(torch.get_default_dtype())).mean())
            optimizer.step()
            if state is None and run.iteration == loading["stop"]:
                stopped = run.state_dict()  # after the loop it would be that of the next pass
                break
        else:
            continue
        break
    found = {"seen": seen, "state": stopped or run.state_dict()}
    run.close()
    return found


def serve(folder: str) -> None:
    """Run what comes, until the pipe is closed."""
    answer_all(folder, lambda job: train(**job))


def batch_sizes(workers: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Of every worker, some without samples."""
    return st.tuples(*(st.integers(0, 12) for _ in range(workers))).filter(any)


def loadings(workers: int) -> st.SearchStrategy[Loading]:
    """Trainings over loaders for so many workers."""
    plans = st.lists(st.tuples(st.integers(0, 12), batch_sizes(workers)), max_size=3)
    return st.builds(
        Loading,
        samples=st.integers(40, 120),
        order=st.sampled_from(ORDERS),
        processes=st.tuples(*(st.sampled_from((0, 2)) for _ in range(workers))),
        prefetch=st.sampled_from((1, 4)),
        persistent=st.booleans(),
        own_sampler=st.booleans(),
        sizes=st.tuples(*(st.integers(1, 12) for _ in range(workers))),
        plans=plans.map(lambda p: tuple(sorted(p))),
        stop=st.integers(1, 20),
        epochs=st.integers(1, 3),
    )
