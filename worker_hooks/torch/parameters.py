"""What a training changes: the parameters of its models and of its optimizers, watched from batch to batch."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from dynamix_ps.errors import CheckpointError, TrainingError
from worker_hooks.adapter import ModelParameters
from worker_hooks.exchange.agreement import on_device
from worker_hooks.exchange.weight_samples import WeightSamples, part_of
from worker_hooks.torch.glance import Glance, ToldSettings

_DISTRIBUTED = ("DistributedDataParallel", "FullyShardedDataParallel")
HALVES = (torch.float16, torch.bfloat16)
_REAL = (torch.float32, torch.float64)  # sums and norms are computed in them


class TorchParameters(ModelParameters):
    """The parameters of `models` and `optimizers` by name, and those of them that are trained."""

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.models, self.optimizers = models, optimizers
        self.trained: dict[str, nn.Parameter] = {}
        self.frozen: dict[str, nn.Parameter] = {}
        self.norms: list[nn.Module] = []
        self._seen: list[tuple[object, ...]] = []
        self._glance = Glance((), ())
        self._ever: set[nn.Parameter] = set()
        self.settings = ToldSettings()
        self.samples: WeightSamples[torch.Tensor] = WeightSamples({}, total_and_norm)

    def look_up(self) -> list[str]:
        named = self.named()
        self.trained = {name: p for name, p in named.items() if p.requires_grad}
        self.frozen = {name: p for name, p in named.items() if not p.requires_grad}
        if not self.trained:
            raise TrainingError("the model has no parameter that requires a gradient, so there is nothing to train")
        self._seen = self._present()
        self._glance = Glance(self.models, self.optimizers)
        self.code = zlib.crc32(repr(self.described()).encode())
        has_halves = any(p.dtype in HALVES for p in self.trained.values())  # they show it at once
        self.tolerance = 0.05 if has_halves else 2e-4
        modules = [module for model in self.models for module in model.modules()]
        _check_modules(modules)
        self.norms = [m for m in modules if isinstance(m, _NormBase)]
        self.samples = WeightSamples({**named, **self._compared_buffers()}, total_and_norm)
        added = [name for name, parameter in named.items() if parameter not in self._ever]
        self._ever.update(named.values())
        return added

    def named(self) -> dict[str, nn.Parameter]:
        """All of them once, trained or not."""
        return named_parameters(self.models, self.optimizers)

    def stepped(self) -> list[nn.Parameter]:
        """Those that need a gradient now."""
        return [p for p in (*self.trained.values(), *self.frozen.values()) if p.requires_grad]

    def with_gradient(self) -> list[nn.Parameter]:
        """Every parameter that a step would change, also one that was frozen after the sum."""
        return [p for p in self.named().values() if p.grad is not None]

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether it is, or was, one of them."""
        return parameter in self._ever

    def buffers(self) -> Iterator[tuple[str, nn.Module, str]]:
        """Buffers with floating-point values that checkpoints keep: name, module, and name within the module."""
        for number, model in enumerate(self.models):
            kept = model.state_dict(keep_vars=True)
            for name, buffer in model.named_buffers():
                if name in kept and buffer.dtype.is_floating_point:
                    path, _, own_name = name.rpartition(".")
                    yield (f"{number}.{name}" if len(self.models) > 1 else name), model.get_submodule(path), own_name

    def _compared_buffers(self) -> dict[str, torch.Tensor]:
        """All of these but running statistics, which are summed."""
        statistics = {id(buffer) for norm in self.norms for buffer in norm.buffers()}
        found = {name: module.get_buffer(own_name) for name, module, own_name in self.buffers()}
        return {name: buffer for name, buffer in found.items() if id(buffer) not in statistics}

    def _present(self) -> list[tuple[object, ...]]:
        """All that `changed` compares."""
        everything = [p for model in self.models for p in model.parameters()]
        everything += [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        return [(id(p), p.requires_grad, p.dtype, p.shape, p.device) for p in everything]

    def changed(self) -> bool:
        if self._glance.same():
            return False
        if self._present() != self._seen:
            return True
        self._glance = Glance(self.models, self.optimizers)
        return False

    def described(self) -> dict[str, str]:
        return {
            name: f"{tuple(p.shape)} {str(p.dtype).removeprefix('torch.')}{on_device(p.device.type)}"
            for name, p in self.trained.items()
        }

    @property
    def smallest_share(self) -> int:
        return 2 if any(isinstance(norm, _BatchNorm) for norm in self.norms) else 1

    # -- new parameters -----------------------------------------------------------------------------------------------

    def pack(self, names: Sequence[str]) -> bytes:
        everything, packed = self.named(), io.BytesIO()
        torch.save({name: everything[name].detach().cpu() for name in names}, packed)
        return packed.getvalue()

    def unpack(self, values: bytes) -> None:
        everything = self.named()
        try:
            loaded = torch.load(io.BytesIO(values), map_location="cpu", weights_only=True)
            with torch.no_grad():
                for name, value in loaded.items():
                    everything[name].copy_(value)
        except Exception as error:  # torch.load raises many types for damaged bytes
            raise CheckpointError(f"worker 0 sent parameters that do not fit: {error}") from error


def _check_modules(modules: Sequence[nn.Module]) -> None:
    """Raises TrainingError for modules that exchange something themselves."""
    for module in modules:
        if isinstance(module, nn.SyncBatchNorm):
            raise TrainingError(
                "SyncBatchNorm needs exchanges of its own in forward, which are not supported; use BatchNorm, "
                "whose running statistics are averaged over all workers, or GroupNorm"
            )
        if type(module).__name__ in _DISTRIBUTED:
            raise TrainingError(
                f"the model is wrapped in {type(module).__name__}, which averages gradients itself without regard to "
                "batch sizes; give attach() the model inside of it"
            )


def named_parameters(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, nn.Parameter]:
    """Every parameter once: by its place in a model, or else in an optimizer."""
    named: dict[str, nn.Parameter] = {}
    found: set[nn.Parameter] = set()
    for number, model in enumerate(models):
        for name, parameter in model.named_parameters():
            if parameter not in found:
                found.add(parameter)
                named[f"{number}.{name}" if len(models) > 1 else name] = parameter
    for number, optimizer in enumerate(optimizers):
        for place, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter not in found:
                    found.add(parameter)
                    named[f"optimizer {number}, group {place}, parameter {index}"] = parameter
    return named


def parameters_of_no_model(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, nn.Parameter]:
    """Those that only an optimizer knows: of a loss with weights of its own."""
    in_models = {parameter for model in models for parameter in model.parameters()}
    return {name: one for name, one in named_parameters(models, optimizers).items() if one not in in_models}


def total_and_norm(tensor: torch.Tensor, offset: int) -> tuple[float, float]:
    """Sum and norm of a regular sample of the values, of whatever type; both parts of complex ones count."""
    flat = tensor.detach().reshape(-1)[part_of(tensor.numel(), offset)]
    if flat.dtype not in _REAL:
        if flat.is_complex():
            flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
        flat = flat.to(precise(flat.dtype))
    return float(flat.sum()), math.sqrt(float(torch.dot(flat, flat)))


def precise(dtype: torch.dtype) -> torch.dtype:
    """A type that torch can compute sums and norms of values of this type in."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    return torch.float64  # whole numbers and booleans, as quantised layers have
