"""Train a model with torch's DistributedDataParallel and batch sizes that stay: DYNAMIX is compared with it.

    python -m benchmarks.workloads.train_ddp --sizes 219 110 55 --data fashion-mnist --model cnn --epochs 3

It takes the options of train.py, and one size per worker. Each worker is such a process, with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT as torchrun sets them. Our hook has no part in it; samples come in the same order as under
the hook. Worker 0 prints what happens, a JSON document per line:

    {"kind": "began"}
    {"kind": "paused"}                       an evaluation begins, which is no training
    {"kind": "evaluation", ...}              what it found; training goes on
    {"kind": "diverged", "reason": "..."}    the loss is not finite, and training ends
    {"kind": "ended", ...}
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads import data, models, objective
from benchmarks.workloads.arguments import parse_arguments
from benchmarks.workloads.goal import Goal
from benchmarks.workloads.optimizers import make_optimizer
from benchmarks.workloads.schedule import scheduled
from benchmarks.workloads.torch_samples import SampleSet
from dynamix_ps.apportion import apportion
from dynamix_ps.errors import DIVERGED
from worker_hooks.sampling.sampler import Cursor, GlobalSampler

EVALUATED_AT_ONCE = 256  # samples, as with the hook
Score = Callable[[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]  # sums over samples, by name


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--sizes", type=int, nargs="+", required=True, help="samples of every worker in an iteration")
    args = parse_arguments(__doc__, "torch", models.MODELS, own)
    if args.ema_decay is not None:
        own.error("--ema-decay: averaged weights are of train.py alone; leave it out")
    torch.manual_seed(args.seed)
    found = data.load(args.data, args.path)
    print(f"data: {found.source}", file=sys.stderr, flush=True)
    model = models.make_model(args.model, found.shape, found.classes)
    optimizer = make_optimizer(model, args)
    train_set, test_set = SampleSet(found.train), SampleSet(found.test.first(args.test_samples))
    dist.init_process_group("gloo")
    run = DdpTraining(model, train_set, args.sizes, args.seed, args.epochs)

    def score(inputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return objective.scores(objective.outputs(model, inputs, args.autocast), targets)

    goal = Goal(args.epochs, args.most_epochs, args.metric, args.target)
    for inputs, targets in goal.batches(run):
        for group in optimizer.param_groups:
            group["lr"] = scheduled(args.schedule, args.lr, run)
        optimizer.zero_grad()
        run.backward(objective.mean_loss(objective.outputs(run.parallel, inputs, args.autocast), targets))
        optimizer.step()
        if run.every_samples(args.eval_samples):
            goal.see(run.evaluate(test_set, score))
    run.evaluate(test_set, score)
    run.end()


class DdpTraining:
    """The iterations of one worker of N over DDP, and their clock.

    Args:
        train_set: tensors, a row per sample.
        sizes: samples of every worker in an iteration; fewer at the end of an epoch, in the same proportion.
        epochs: of the whole training, for schedules of the rate.
    """

    def __init__(
        self, model: torch.nn.Module, train_set: SampleSet, sizes: Sequence[int], seed: int, epochs: int
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if len(sizes) != self.size:
            raise ValueError(f"sizes: got {len(sizes)}, expected one for each of the {self.size} workers")
        self.parallel: Any = DistributedDataParallel(model)
        self._model, self._tensors, self._sizes = model, train_set.tensors, tuple(sizes)
        self._sampler = GlobalSampler(len(train_set), seed)
        self._cursor = Cursor()
        self._step = self._sampler.plan_step(self._cursor, self._sizes)  # the one at hand
        self._epochs, self._iterations, self._trained_samples = epochs, 0, 0
        self._began_s: float | None = None
        self._paused_s = 0.0

    @property
    def progress(self) -> float:
        """Part of the training that is done."""
        return self._trained_samples / (self._epochs * self._sampler.length)

    @property
    def loss_factor(self) -> float:
        """What a worker's mean loss is multiplied by.

        DDP gives every worker the mean over N workers of their gradients g_i. With N b_i / B this is
        sum(b_i g_i) / B, the gradient of the mean over all B samples.
        """
        return self.size * self._step.sizes[self.rank] / sum(self._step.sizes)

    def batches(self, epochs: int | None = None) -> Iterator[Any]:
        """This worker's inputs and targets, until so many epochs are complete in all."""
        assert epochs is not None
        if self._began_s is None:
            dist.barrier()
            self._began_s = time.perf_counter()
            self._tell("began")
        while self._cursor.epoch < epochs:
            self._step = self._sampler.plan_step(self._cursor, self._sizes)
            self._cursor = self._step.next
            yield self._samples(self._sampler.indices(self._step, self.rank))

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of the mean loss over this worker's samples; then gradients are those of all samples."""
        (loss * self.loss_factor).backward()  # type: ignore[no-untyped-call]
        self._iterations += 1
        self._trained_samples += sum(self._step.sizes)

    def every_samples(self, samples: int) -> bool:
        """After `backward`: whether this iteration passed a multiple of `samples`."""
        return (self._trained_samples - sum(self._step.sizes)) // samples < self._trained_samples // samples

    def evaluate(self, test_set: SampleSet, score: Score) -> dict[str, float]:
        """Means over the test set. Workers have parts in proportion to their sizes. It counts as no training.

        Ends this process if the loss is not finite.
        """
        began_s = time.perf_counter()
        trained_s = self._trained_s()
        self._tell("paused")
        parts = apportion(len(test_set), self._sizes, [1] * self.size)  # all learn the names of values
        begin = sum(parts[: self.rank])
        with torch.inference_mode():
            self._model.eval()
            sums: dict[str, torch.Tensor] = {}
            for first in range(begin, begin + parts[self.rank], EVALUATED_AT_ONCE):
                rows = slice(first, min(first + EVALUATED_AT_ONCE, begin + parts[self.rank]))
                for name, value in score(*(tensor[rows] for tensor in test_set.tensors)).items():
                    sums[name] = sums.get(name, torch.tensor(0.0, dtype=torch.float64)) + value
            self._model.train()
        total = torch.stack(list(sums.values()))
        dist.all_reduce(total)
        values = dict(zip(sums, (total / len(test_set)).tolist(), strict=True))
        if not math.isfinite(values["loss"]):
            self._tell("diverged", reason=f"the test loss {DIVERGED} {self._iterations}")
            self._leave()
        self._paused_s += time.perf_counter() - began_s
        self._tell("evaluation", **self._so_far(), trained_s=trained_s, values=values)
        return values

    def end(self) -> None:
        """Tell the end, and end this process."""
        self._tell("ended", **self._so_far())
        self._leave()

    def _so_far(self) -> dict[str, float]:
        """`train_s`: with the evaluations."""
        train_s = self._trained_s() + self._paused_s
        return {"iterations": self._iterations, "trained_samples": self._trained_samples, "train_s": train_s}

    def _samples(self, chosen: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Two samples for no numbers: the loss factor is 0 then, and DDP needs a backward pass on every worker."""
        rows = torch.from_numpy(chosen if len(chosen) else np.arange(2))
        return tuple(tensor[rows] for tensor in self._tensors)

    def _trained_s(self) -> float:
        """Seconds since training began, without evaluations."""
        assert self._began_s is not None, "training has begun"
        return time.perf_counter() - self._began_s - self._paused_s

    def _tell(self, kind: str, **values: Any) -> None:
        if self.rank == 0:
            print(json.dumps({"kind": kind, **values}), flush=True)

    @staticmethod
    def _leave() -> None:
        dist.barrier()
        os._exit(0)  # the end of a process group of gloo hangs at times


if __name__ == "__main__":
    main()
