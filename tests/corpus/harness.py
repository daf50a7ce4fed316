"""Runs a script of the corpus: as a worker, as one process with the hook, or as one process in plain torch."""

from __future__ import annotations

import os
import re
import runpy
from ast import get_docstring, parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

import dynamix_ps.torch as dynamix
from tests.cases.harness import RecordingAttach, WatchedWeights, in_double, weights
from tests.cases.plain import Loops, PlainRun
from tests.corpus.draws import DrawnBySample

Parts = list[list[list[list[int]]]]  # of one attach: loop -> batch -> worker -> sample numbers


def refusal_of(file: Path) -> str | None:
    """What the error must say that the script ends with on several workers: `refused: REGEX` in its docstring."""
    text = " ".join((get_docstring(parse(file.read_text())) or "").split())
    found = re.search(r"refused: (.+?)(?:$|\.$)", text)
    return found and found[1]


def run_script(file: str, attach: Callable[..., Any], draws: DrawnBySample) -> dict[str, Any]:
    """What the script has made, by names of its own: the weights of all modules and the rates of all optimizers."""
    with patch.object(dynamix, "attach", attach), draws.in_place():
        names = in_double(lambda _: runpy.run_path(file, run_name="__main__"), attach)
    modules = {name: weights(one) for name, one in names.items() if isinstance(one, nn.Module)}
    optimizers = {name: one for name, one in names.items() if isinstance(one, torch.optim.Optimizer)}
    rates = {name: [[group["lr"] for group in one.param_groups]] for name, one in optimizers.items()}
    return modules | rates


# -- in a worker ------------------------------------------------------------------------------------------------------


class CorpusAttach(RecordingAttach):
    """`dynamix.attach` in a worker. Knows the samples of a batch whatever its fields are."""

    def __init__(self, plans: Sequence[tuple[int, Sequence[int]]], draws: DrawnBySample) -> None:
        super().__init__(plans)
        self._draws, self._watched = draws, WatchedWeights()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        run = super().__call__(*arguments, **options)
        self._watched.follow(run)
        recorded = run.training.loops.batches

        def batches(*args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                with closing(recorded(*args, **kwargs)) as source:
                    yield from source
            finally:
                self._draws.end()

        run.training.loops.batches = batches
        return run

    def samples_of(self, run: Any, batch: Any) -> list[int]:
        newest = run.training.loops.taken.waiting or run.training.now.batch
        numbers: list[int] = run.training.data.stream._sampler.indices(newest.step, run.rank).tolist()
        self._draws.begin([numbers])
        return numbers


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Run the script `file` in this worker, with `plans`. Returns what came out, and the samples that it took."""
    draws = DrawnBySample()
    attach = CorpusAttach(job["plans"], draws)
    return {"values": run_script(job["file"], attach, draws), "recorded": attach.recorded}


def alone(job: dict[str, Any]) -> dict[str, Any]:
    """The same in a process that no launcher has started, as `python FILE`."""
    for name in [name for name in os.environ if name.startswith(("DMLC_", "DYNAMIX_"))]:
        del os.environ[name]
    return work(job)


# -- in plain torch ---------------------------------------------------------------------------------------------------


class CorpusRun(PlainRun):
    """A run in plain torch: its batches are those of all workers together, made as the script's loader does."""

    def __init__(self, models: Any, data: Any, loops: Parts, draws: DrawnBySample) -> None:
        super().__init__(models, data, [])
        self._collate = data.collate_fn if isinstance(data, DataLoader) else default_collate
        self._parts, self._draws = iter(loops), draws

    def batches(self, epochs: int | None = None, iterations: int | None = None) -> Iterator[Any]:
        try:
            for parts in next(self._parts):
                self._draws.begin(parts)
                yield self._batch([row for part in parts for row in part])
                self.iteration += 1
        finally:
            self._draws.end()

    def every(self, count: int) -> bool:
        return (self.iteration + 1) % count == 0  # after the step

    def evaluate(self, dataset: Any, score: Callable[..., Any]) -> Any:
        data = getattr(dataset, "dataset", dataset)
        batch = self._collate([data[row] for row in range(len(data))])
        with torch.no_grad():
            found = score(**batch) if isinstance(batch, dict) else score(*batch)
        return {name: float(one) / len(data) for name, one in found.items()}

    def _batch(self, rows: list[int]) -> Any:
        return self._collate([self._dataset[row] for row in rows])


def plainly(file: str, of_workers: Sequence[list[Loops]]) -> dict[str, Any]:
    """What comes out in one process in plain torch, whose batches are those that the workers have taken."""
    draws = DrawnBySample()
    runs = iter(parts_of(of_workers))

    def attach(models: Any, optimizers: Any, data: Any, **_: Any) -> CorpusRun:
        return CorpusRun(models, data, next(runs), draws)

    return run_script(file, attach, draws)


def parts_of(of_workers: Sequence[list[Loops]]) -> list[Parts]:
    """The batches of all workers, side by side."""
    return [
        [[list(parts) for parts in zip(*batches, strict=True)] for batches in zip(*loops, strict=True)]
        for loops in zip(*of_workers, strict=True)
    ]
