"""What a Gluon training changes: the parameters of its model and of its trainer, watched from batch to batch."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, Trainer, nn

from dynamix_ps.errors import TrainingError
from worker_hooks.mxnet.state import named_parameters

ROUND = 50  # sums until all weights have been compared
SAMPLE = 4096  # values of one parameter that are compared at once
TOLERANCE = 2e-4  # two processors may round each step differently


class TrainedParameters:
    """The parameters of `net` and `trainer` by name, and those of them that are trained."""

    def __init__(self, net: Block, trainer: Trainer) -> None:
        self._net, self._trainer = net, trainer
        self.trained: dict[str, Parameter] = {}
        self.code = 0
        self._named: dict[str, Parameter] = {}
        self._seen: tuple[object, ...] = ()
        self._ever: set[int] = set()
        self._compared: dict[str, Parameter] = {}

    def look_up(self) -> list[str]:
        """Find what is trained now. Returns the names of parameters that were not there before.

        Raises TrainingError where nothing can be trained.
        """
        everything = named_parameters(self._net)
        everything |= {one.name: one for one in self._trainer._params if one not in everything.values()}
        self._named = {}
        for name, parameter in everything.items():  # a shared parameter has several names
            if parameter not in self._named.values():
                self._named[name] = parameter
        self.trained = {name: one for name, one in self._named.items() if one.grad_req != "null"}
        if not self.trained:
            raise TrainingError("the model has no parameter that requires a gradient, so there is nothing to train")
        summed = set(map(id, self.statistics()))
        self._compared = {name: one for name, one in self._named.items() if id(one) not in summed}
        self._seen = self._present()
        self.code = zlib.crc32(repr(self.described()).encode())
        added = [name for name, one in self._named.items() if id(one) not in self._ever]
        self._ever.update(map(id, self._named.values()))
        return added

    def _present(self) -> tuple[object, ...]:
        everything = [*self._net.collect_params().values(), *self._trainer._params]
        return tuple((id(one), one.grad_req, np.dtype(one.dtype), one.shape) for one in everything)

    def changed(self) -> bool:
        """Whether anything of what `look_up` found has changed since."""
        return self._present() != self._seen

    def described(self) -> dict[str, str]:
        """Shape and type of every trained parameter."""
        return {name: f"{tuple(one.shape)} {np.dtype(one.dtype).name}" for name, one in self.trained.items()}

    def statistics(self) -> list[Parameter]:
        """Running mean and variance of every batch norm."""
        found: list[Parameter] = []

        def collect(block: Block) -> None:
            if isinstance(block, nn.BatchNorm) and not block._kwargs.get("use_global_stats"):
                found.extend((block.running_mean, block.running_var))

        self._net.apply(collect)
        return found

    def sample(self, number: int) -> tuple[float, float]:
        """Direction and size of a part of the weights; ROUND successive numbers take in all parameters."""
        everything = list(self._compared.values())
        turns = min(len(everything), ROUND)
        values = [direction_and_size(one.data(), number // turns) for one in everything[number % turns :: turns]]
        return sum(value[0] for value in values), sum(value[1] for value in values)

    def sample_all(self, number: int) -> dict[str, tuple[float, float]]:
        """The same of every parameter by itself."""
        turns = min(len(self._compared), ROUND)
        return {name: direction_and_size(one.data(), number // turns) for name, one in self._compared.items()}

    def pack(self, names: Sequence[str]) -> bytes:
        """The values of these parameters."""
        packed = io.BytesIO()
        np.savez(packed, **{name: self._named[name].data().asnumpy() for name in names})
        return packed.getvalue()

    def unpack(self, values: bytes) -> None:
        """Give parameters the values that `pack` made."""
        with np.load(io.BytesIO(values), allow_pickle=False) as archive:
            for name in archive.files:
                self._named[name].data()[:] = archive[name]


def direction_and_size(array: Any, offset: int) -> tuple[float, float]:
    """The sum of an array's values over their norm, and log2 of the norm; of a large one, of a regular sample."""
    flat = array.reshape((-1,))
    if flat.size > SAMPLE:
        stride = flat.size // SAMPLE
        flat = flat[offset % stride :: stride]
    values = flat.asnumpy()
    norm, total = float(np.linalg.norm(values)), float(values.sum())
    if not (math.isfinite(norm) and math.isfinite(total)):
        return 0.0, 1e6
    return (total / norm, math.log2(norm)) if norm else (0.0, -1e6)


def mean_loss(loss: mx.nd.NDArray) -> mx.nd.NDArray:
    """The loss, if it is one number. Raises TrainingError otherwise."""
    if loss.size != 1:
        raise TrainingError(f"run.backward() got {loss.size} losses, expected their mean: loss_function(...).mean()")
    return loss
