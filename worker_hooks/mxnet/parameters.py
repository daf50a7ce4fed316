"""What a Gluon training changes: the parameters of its model and of its trainer, watched from batch to batch."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, Trainer, nn

from dynamix_ps.errors import TrainingError
from worker_hooks.adapter import ModelParameters
from worker_hooks.exchange.agreement import on_device
from worker_hooks.exchange.weight_samples import WeightSamples, part_of
from worker_hooks.mxnet.state import named_parameters


class MXNetParameters(ModelParameters):
    """The parameters of `net` and `trainer` by name, and those of them that are trained."""

    tolerance = 2e-4

    def __init__(self, net: Block, trainer: Trainer) -> None:
        self._net, self._trainer = net, trainer
        self.trained: dict[str, Parameter] = {}
        self._named: dict[str, Parameter] = {}
        self._seen: tuple[object, ...] = ()
        self._ever: set[int] = set()
        self.samples: WeightSamples[Parameter] = WeightSamples({}, total_and_norm)

    def look_up(self) -> list[str]:
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
        compared = {name: one for name, one in self._named.items() if id(one) not in summed}
        self.samples = WeightSamples(compared, total_and_norm)
        self._seen = self._present()
        self.code = zlib.crc32(repr(self.described()).encode())
        added = [name for name, one in self._named.items() if id(one) not in self._ever]
        self._ever.update(map(id, self._named.values()))
        return added

    def _present(self) -> tuple[object, ...]:
        everything = [*self._net.collect_params().values(), *self._trainer._params]
        return tuple((id(one), one.grad_req, np.dtype(one.dtype), one.shape) for one in everything)

    def changed(self) -> bool:
        return self._present() != self._seen

    def described(self) -> dict[str, str]:
        return {
            name: f"{tuple(one.shape)} {np.dtype(one.dtype).name}{on_device(one.list_ctx()[0].device_type)}"
            for name, one in self.trained.items()
        }

    def statistics(self) -> list[Parameter]:
        """Running mean and variance of every batch norm."""
        found: list[Parameter] = []

        def collect(block: Block) -> None:
            if isinstance(block, nn.BatchNorm) and not block._kwargs.get("use_global_stats"):
                found.extend((block.running_mean, block.running_var))

        self._net.apply(collect)
        return found

    @property
    def smallest_share(self) -> int:
        return 2 if self.statistics() else 1

    def pack(self, names: Sequence[str]) -> bytes:
        packed = io.BytesIO()
        np.savez(packed, **{name: self._named[name].data().asnumpy() for name in names})
        return packed.getvalue()

    def unpack(self, values: bytes) -> None:
        with np.load(io.BytesIO(values), allow_pickle=False) as archive:
            for name in archive.files:
                self._named[name].data()[:] = archive[name]


def total_and_norm(parameter: Parameter, offset: int) -> tuple[float, float]:
    """Sum and norm of a regular sample of the values."""
    array = parameter.data().reshape((-1,))
    values = array[part_of(array.size, offset)].asnumpy()
    return float(values.sum()), float(np.linalg.norm(values))


def mean_loss(loss: mx.nd.NDArray) -> mx.nd.NDArray:
    """The loss, if it is one number. Raises TrainingError otherwise."""
    if loss.size != 1:
        raise TrainingError(f"run.backward() got {loss.size} losses, expected their mean: loss_function(...).mean()")
    return loss
