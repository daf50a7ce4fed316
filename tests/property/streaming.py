"""Shards as data: what hypothesis draws, and a training over them in a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from dynamix_ps.messages import Plan
from tests.property.loading import Numbers, batch_sizes
from tests.property.pool import answer_all


@dataclass(frozen=True)
class Streaming:
    """A training that is left after `stop` iterations and gone on with by new runs."""

    lengths: tuple[int, ...]  # of the shards
    slow: int  # rank of the worker that reads slowly
    sizes: tuple[int, ...]
    plans: tuple[tuple[int, tuple[int, ...]], ...]  # (iterations, batch sizes from then on)
    stop: int
    unused: bool  # it is left with a batch that was not used
    epochs: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def train(streaming: dict[str, Any], state: dict[str, Any] | None) -> dict[str, Any]:
    """Train from `state`, if there is one, otherwise from the begin until `stop` iterations are complete.

    Returns the samples of this worker, one list of batches per epoch, and the state at the end.
    """
    import dynamix_ps.torch as dynamix

    rank, lengths = int(os.environ["DMLC_WORKER_ID"]), streaming["lengths"]

    def samples_of(shard: int) -> Iterator[int]:
        begin = sum(lengths[:shard])
        for number in range(begin, begin + lengths[shard]):
            if rank == streaming["slow"]:
                time.sleep(0.0005)
            yield number

    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = dynamix.attach(model, optimizer, dynamix.shards(range(len(lengths)), samples_of))
    if state:
        run.load_state_dict(state)
    plans = [
        (after, Plan(number, tuple(sizes)))
        for number, (after, sizes) in enumerate([(0, streaming["sizes"]), *streaming["plans"]], 1)
    ]
    run.training.session.newest_plan = lambda: [plan for after, plan in plans if after <= run.iteration][-1]
    seen: list[list[list[int]]] = [[] for _ in range(streaming["epochs"])]
    stopped: dict[str, Any] = {}
    for epoch in run.epochs(streaming["epochs"]):
        for batch in run.batches():
            if state is None and run.iteration >= streaming["stop"]:
                run.evaluate(Numbers(5), lambda numbers: numbers.sum())  # a sum while the batch is not used
                stopped = run.state_dict()  # after the loop it would be that of the next pass
                break
            seen[epoch].append(batch[: run.training.now.batch.samples].tolist())
            optimizer.zero_grad()
            run.backward(model(batch[:, None].to(torch.get_default_dtype())).mean())
            optimizer.step()
            if state is None and not streaming["unused"] and run.iteration == streaming["stop"]:
                stopped = run.state_dict()
                break
        else:
            continue
        break
    found = {"seen": seen, "state": stopped or run.state_dict(), "epoch": run.epoch}
    run.close()
    return found


def serve(folder: str) -> None:
    """Run what comes, until the pipe is closed."""
    answer_all(folder, lambda job: train(**job))


def streamings(workers: int) -> st.SearchStrategy[Streaming]:
    """Trainings over shards for so many workers: single samples, many tiny shards, few long ones."""
    plans = st.lists(st.tuples(st.integers(0, 12), batch_sizes(workers)), max_size=3)
    lengths = st.one_of(
        st.lists(st.integers(0, 4), min_size=10, max_size=30), st.lists(st.integers(0, 50), min_size=2, max_size=8)
    )
    return st.builds(
        Streaming,
        lengths=lengths.filter(any).map(tuple),
        slow=st.integers(0, workers - 1),
        sizes=st.tuples(*(st.integers(1, 12) for _ in range(workers))),
        plans=plans.map(lambda p: tuple(sorted(p))),
        stop=st.integers(1, 20),
        unused=st.booleans(),
        epochs=st.integers(1, 3),
    )
