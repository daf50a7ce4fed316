"""The exchange of torch gradients: buckets (bucket.py), filled by the parameters' own hooks while backward runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.gradient_exchange import GradientExchange
from worker_hooks.exchange.trailer import REACHED, Present, trailer_length
from worker_hooks.torch.bucket import TorchBucket, layout_buckets
from worker_hooks.torch.gradient_hooks import GradientHooks, OwnHook
from worker_hooks.workers import Workers

if TYPE_CHECKING:
    from worker_hooks.torch.late_gradients import LateGradients


class TorchExchange(GradientExchange):
    """The exchange of all `parameters` (by name) that a training changes."""

    buckets: Sequence[TorchBucket]
    late: LateGradients | None

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        norms: Sequence[torch.nn.Module],
        comm: Comm,
        bucket_bytes: int,
        prefix: str,
        workers: Workers | None = None,
        script_hooks: GradientHooks | None = None,
        late: LateGradients | None = None,
    ) -> None:
        """`norms`: layers whose running statistics travel too. `workers`: without it, every process is one.

        `script_hooks`: those that the script has registered on the parameters. `late`: sees who wants
        gradients that are late; without it none is.
        """
        self._script_hooks, self.late = script_hooks or GradientHooks(), late
        if late is not None:
            late.bucket_of = self.bucket_of
        workers = workers or Workers.one_per_process(comm)
        trained = list(parameters.values())
        check_types(parameters)
        self._norms = norms
        self._kept: dict[torch.nn.Parameter, torch.Tensor] = {}  # global gradients of parameters frozen after the sum
        self.touched: dict[torch.nn.Parameter, tuple[int, int]] = {}  # identity and version of what was accumulated
        self.additions = 0
        behind = trailer_length(workers, len(trained))
        buckets = layout_buckets(trained, statistics_of(norms), bucket_bytes, comm, prefix, behind)
        super().__init__(comm, buckets, workers)
        self._bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(OwnHook(self._on_gradient, bucket, number))
            for bucket in buckets
            for number, parameter in enumerate(bucket.parameters)
        ]

    def _on_gradient(self, bucket: TorchBucket, number: int, parameter: torch.nn.Parameter) -> None:
        if self.late is not None and bucket in self.late.due:
            raise TrainingError(
                "a backward pass that is no call of torch.autograd.backward() has added to the gradient of "
                f"{self._names[parameter]} while its sum was under way; set overlap: backward in the cluster file"
            )
        if parameter.grad is None:
            return
        if not self._open:  # a backward outside run.backward() accumulates here; the next run.backward() sends it
            self.touched[parameter] = (id(parameter.grad), parameter.grad._version)
            self.additions += 1
            return
        if bucket.take(number, parameter.grad):
            self.send_full()

    def begin(self, weight: float, measure_norm: bool, share: float | None = None) -> None:
        self._check_untouched()
        self.touched.clear()
        self._script_hooks.open()
        super().begin(weight, measure_norm, share)

    def bucket_of(self, parameter: torch.Tensor) -> TorchBucket | None:
        """The bucket with the gradient of this parameter; none: it is in no sum."""
        return self._bucket_of.get(parameter)

    def may_be_late(self) -> bool:
        if self.late is None or len(self.buckets) == 1:
            return False
        why = "hooks of the script on gradients see them after the sum" if self._script_hooks.are_there else ""
        if any(bucket.is_known_elsewhere() for bucket in self.buckets):
            why = "the script keeps gradients by reference"
        if why:
            self.late.tell(why)
        return not why

    def _check_untouched(self) -> None:
        """Raises TrainingError if a gradient that is not global yet was changed by other means than backward."""
        for parameter, (identity, version) in self.touched.items():
            gradient = parameter.grad
            if gradient is None or id(gradient) != identity or gradient._version == version:
                continue
            if gradient._is_view():
                raise TrainingError(
                    f"the gradient of {self._names[parameter]} is a part of a tensor that has changed between "
                    "loss.backward() and run.backward(): by the gradients of other parameters, or by the script; call "
                    "run.backward() for every batch, or give every parameter a gradient of its own"
                )
            if gradient.is_sparse or bool(gradient.any()):
                raise TrainingError(
                    f"the gradient of {self._names[parameter]} was changed between loss.backward() and run.backward(), "
                    "where it is that of this worker alone; change gradients after run.backward(), which makes "
                    "them global"
                )

    def gradient(self) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Of this process, times its weight, before the sum: in the `contribute` of `send_rest`."""
        return {parameter: place for bucket in self.buckets for parameter, place in bucket.own_gradients()}

    def send_rest(self, contribute: Any) -> None:
        self._script_hooks.close_sum()
        if self._norms:
            self._active = [norm.training for norm in self._norms for _ in statistics_of([norm])]
            self.buckets[-1].write_statistics(self._active, self._share)
        super().send_rest(contribute)

    def deliver(self, factor: float = 1.0, statistics_factor: float = 1.0) -> None:
        super().deliver(factor, statistics_factor)
        if self._norms:
            self.buckets[-1].deliver_statistics(self._active)

    def _with_reached(self, present: NDArray[np.bool_]) -> Present:
        reached = self._script_hooks.reached
        if not reached:
            return present
        return present + REACHED * np.array([parameter in reached for parameter in self._bucket_of])

    def after_sum(self) -> None:
        if not self._script_hooks.are_there:
            return
        parameters = list(self._bucket_of)  # whose hooks wait on this worker or on another one:
        self._script_hooks.after_sum(parameters[number] for number in self.trailer.reached())

    def carry(self, before: float, weight: float) -> None:
        """What backward has accumulated is of batches with weight `before`; the next one has `weight`."""
        self._check_untouched()
        for bucket in self.buckets:
            bucket.carry(before, weight)
        self.touched = {p: (id(p.grad), p.grad._version) for p in self.touched if p.grad is not None}

    @property
    def has_local(self) -> bool:
        return bool(self.touched) or any(bucket.carried for bucket in self.buckets)

    def _accumulates(self, parameter: torch.nn.Parameter) -> bool:
        """Whether `parameter` has gradients that the next sum is to have."""
        if parameter in self._bucket_of[parameter].carried:
            return True
        return parameter in self.touched and parameter.grad is not None

    def lacks(self, parameter: torch.nn.Parameter) -> bool:
        """Whether `parameter`, which is in no bucket yet, has a gradient of this worker alone."""
        return parameter not in self._bucket_of and not self.is_global(parameter)

    def is_global(self, parameter: torch.nn.Parameter) -> bool:
        """Whether the gradient of `parameter`, which is not trained, is none or one of a sum of the time before."""
        return parameter.grad is None or self._kept.get(parameter) is parameter.grad

    def take_over(self, before: GradientExchange) -> list[str]:
        left = super().take_over(before)
        assert isinstance(before, TorchExchange)
        self._kept |= before._kept
        if self.late is not None and before.late is not None:
            self.late, self.late.bucket_of = before.late, self.bucket_of
        for parameter, name in before._names.items():
            if parameter in self._bucket_of:
                continue
            if before._accumulates(parameter):
                left.append(name)
            elif parameter.grad is not None:
                self._kept[parameter] = parameter.grad
        for parameter in self._bucket_of:  # thawed, and a backward has come before this
            if before.lacks(parameter):
                self.touched[parameter] = (id(parameter.grad), parameter.grad._version)
        self.additions = before.additions
        self.touched.update((p, seen) for p, seen in before.touched.items() if p in self._bucket_of)
        for old in before.buckets:
            for parameter, gradient in old.carried.items():
                if parameter in self._bucket_of:
                    bucket = self._bucket_of[parameter]
                    bucket.carried[parameter] = gradient.to(bucket.buffer.dtype)
        return left

    def close(self) -> None:
        super().close()
        for hook in self._hooks:
            hook.remove()


def statistics_of(norms: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """The running statistics of normalisation layers that keep some, in order."""
    return [s for norm in norms for s in (norm.running_mean, norm.running_var) if isinstance(s, torch.Tensor)]


def check_types(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raises TrainingError for parameters whose gradients cannot be summed."""
    for name, parameter in parameters.items():
        if not parameter.dtype.is_floating_point or parameter.is_sparse:
            raise TrainingError(
                f"parameter {name} has type {parameter.dtype}; gradients are summed for floating-point types: "
                "make it two real parameters, or freeze it"
            )
