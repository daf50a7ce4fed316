"""Runs a case as a worker, and records what it takes and what comes out."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dynamix_ps.messages import Plan
from tests.cases.plain import Loops

FOLDER = "tests.cases.scripts"


def data(rows: int = 192, inputs: int = 6, outputs: int = 1) -> TensorDataset:
    """Items are (number of the sample, inputs, targets)."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, inputs, generator=generator)
    return TensorDataset(torch.arange(rows), x, torch.tanh(x @ torch.randn(inputs, outputs, generator=generator)))


def net(inputs: int = 6, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def weights(*modules: nn.Module) -> list[list[float]]:
    """All parameters and buffers, as lists of numbers."""
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    return [tensor.detach().double().flatten().tolist() for tensor in tensors]


def digest(*modules: nn.Module) -> str:
    """Equal if and only if all weights are."""
    return hashlib.sha256(repr(weights(*modules)).encode()).hexdigest()[:12]


def case_of(name: str) -> Callable[..., Any]:
    """The function `file.function` in the folder of scripts."""
    file, function = name.split(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"{FOLDER}.{file}"), function)
    return found


class RecordingAttach:
    """`dynamix.attach` in a worker, with the given plans. `recorded` gets the samples that this worker takes."""

    def __init__(self, plans: Sequence[tuple[int, Sequence[int]]]) -> None:
        """`plans`: batch sizes that are handed out after so many iterations, [(iterations, sizes), ...]."""
        self._plans = plans
        self.recorded: list[Loops] = []

    def __call__(self, models: Any, optimizers: Any, dataset: Any, **options: Any) -> Any:
        from worker_hooks.torch.join import attach

        run = attach(models, optimizers, dataset, **options)
        self.recorded.append(loops := [])
        original = run.training.loops.batches
        first = run.training.plans.switch.newest_scheduled.version + 1
        plans = [(after, Plan(first + number, tuple(sizes))) for number, (after, sizes) in enumerate(self._plans)]

        def newest_plan() -> Plan | None:
            handed_out = [plan for after, plan in plans if after <= run.iteration]
            return handed_out[-1] if handed_out else None

        def batches(*args: Any, **kwargs: Any) -> Iterator[Any]:
            loops.append(loop := [])
            with closing(original(*args, **kwargs)) as source:
                for batch in source:
                    loop.append(self.samples_of(run, batch))
                    yield batch

        run.training.session.newest_plan = newest_plan
        run.training.loops.batches = batches
        return run

    def samples_of(self, run: Any, batch: Any) -> list[int]:
        """The numbers of the samples of the newest batch, which are its first field."""
        newest = run.training.loops.taken.waiting or run.training.now.batch
        return batch[0][: newest.samples].tolist()  # the rest counts for nothing


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Run case `name` with `plans` in this worker. Returns what it returned, and the samples that this worker took."""
    attach = RecordingAttach(job["plans"])
    return {"values": in_double(case_of(job["name"]), attach), "recorded": attach.recorded}


def in_double(case: Callable[..., Any], attach: Callable[..., Any]) -> Any:
    """What the case returns, with a seed of its own and in double precision."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return case(attach)
    finally:
        torch.set_default_dtype(before)


def flat(values: Any) -> Iterator[float]:
    """All numbers in nested lists and dicts."""
    if isinstance(values, dict):
        values = values.values()
    if isinstance(values, Iterable) and not isinstance(values, str):
        for value in values:
            yield from flat(value)
    elif isinstance(values, bool | int | float):
        yield float(values)
    else:
        yield float(int(hashlib.sha256(repr(values).encode()).hexdigest()[:8], 16))


def refuse(name: str) -> None:
    """Run a case that must not go on. Prints whether the weights are those after the last step that was allowed."""
    import dynamix_ps.torch as dynamix

    watched = WatchedWeights()

    def attach(model: Any, optimizer: Any, dataset: Any, **options: Any) -> Any:
        run = dynamix.attach(model, optimizer, dataset, **options)
        watched.follow(run)
        return run

    in_double(case_of(name), attach)
    print("it went on", flush=True)


class WatchedWeights:
    """Prints at an end by an error whether the weights are those after the last step that was allowed."""

    def __init__(self) -> None:
        from worker_hooks.process import failure

        self._models: list[nn.Module] = []
        self._after_step = ""
        self._exit_now: Callable[[int], Any] = failure.exit_now
        failure.exit_now = self._tell_and_exit  # type: ignore[assignment]

    def follow(self, run: Any) -> None:
        """`run`: what attach() has returned."""
        self._models += run.models
        self._note()
        for optimizer in run.optimizers:
            optimizer.register_step_post_hook(self._note)

    def _note(self, *_: Any) -> None:
        self._after_step = self._digest()

    def _digest(self) -> str:
        """Of parameters alone: forward passes change buffers."""
        return digest(*(nn.ParameterList(model.parameters()) for model in self._models))

    def _tell_and_exit(self, code: int) -> Any:
        if self._digest() == self._after_step or not self._models:
            print("weights unchanged", flush=True)
        self._exit_now(code)
