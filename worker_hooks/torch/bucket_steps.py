"""A step of an optimizer that is taken bucket by bucket, while the sums of the other buckets are under way.

The optimizers of torch compute every parameter by itself. So a step with the parameters of one bucket, then with those
of the next one, and so on, is a step with all of them, bit for bit: with the same rates, and with one more in the
counter of each. All but the last part are made before the script's own call of `step()` begins, which makes the last
one: the gradients of the others are away then.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

from worker_hooks.process import failure
from worker_hooks.torch import watched_calls
from worker_hooks.torch.step_hooks import StepHooks

if TYPE_CHECKING:
    from worker_hooks.exchange.gradient_exchange import Bucket
    from worker_hooks.sums import Sums
    from worker_hooks.torch.late_gradients import LateGradients

_NAMES = "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD Muon NAdam RAdam RMSprop Rprop SGD"
_PLAIN = (torch.Tensor, torch.nn.Parameter)
KNOWN = {found for name in _NAMES.split() if (found := getattr(torch.optim, name, None))}  # torch 2.4 lacks some


class BucketSteps:
    """The steps of one optimizer. `late` gets the reason why it waits for all sums."""

    def __init__(self, optimizer: torch.optim.Optimizer, sums: Sums, late: LateGradients) -> None:
        self._optimizer, self._sums, self._late = optimizer, sums, late
        self._away: list[tuple[torch.Tensor, Any]] = []  # parameters that have made this step, and their gradients
        self._interrupt: KeyboardInterrupt | None = None

    def begin(self) -> None:
        """`step()` is about to begin, with its learning rates: make all but the last part of it.

        Where the sum of a part fails after another part is made, this process ends at once.
        """
        if not self._late.due:
            return
        if reason := refusal(self._optimizer):
            self.wait(reason)
            return
        self._away.clear()  # of a step that was interrupted
        *earlier, last = self._parts()
        for bucket, groups in earlier:
            self._arrive(bucket)
            self._late.has_stepped = True
            self._step(groups)
        self._arrive(last[0])
        for parameter in (one for _, groups in earlier for group in groups for one in group):
            self._away.append((parameter, parameter.grad))
            parameter.grad = None

    def wait(self, reason: str) -> None:
        """This step is made at once, with all gradients. `reason`: for people."""
        if self._late.due:
            self._late.tell(reason)
            self._sums.complete()

    def end(self) -> None:
        """`step()` is over: parameters have their gradients again."""
        for parameter, gradient in self._away:
            parameter.grad = gradient
        self._away.clear()
        self._late.has_stepped = True

    def raise_interrupt(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C has come while a part of the step was made."""
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt

    def _parts(self) -> list[tuple[Bucket | None, list[list[Any]]]]:
        """Parameters by group: first those whose sums are there, then those of each late bucket."""
        groups = self._optimizer.param_groups
        parts: dict[Bucket | None, list[list[Any]]] = {
            bucket: [[] for _ in groups] for bucket in (None, *self._late.due)
        }
        for number, group in enumerate(groups):
            for parameter in group["params"]:
                bucket = self._late.bucket_of(parameter)
                parts[bucket if bucket in parts else None][number].append(parameter)
        return [(bucket, found) for bucket, found in parts.items() if any(found)] or [(None, [])]

    def _arrive(self, bucket: Bucket | None) -> None:
        """Ctrl-C waits for the end of the step once there is a part of it; the second one ends this process."""
        if bucket is None:
            return
        while True:
            try:
                return self._sums.arrive(bucket)
            except KeyboardInterrupt as interrupt:
                if not self._late.has_stepped:
                    raise
                if self._interrupt is not None:
                    failure.end_now()
                self._interrupt = interrupt

    def _step(self, groups: list[list[Any]]) -> None:
        step = inspect.unwrap(type(self._optimizer).step)  # without hooks, and what dynamo wants around a step
        with torch.no_grad(), _in_groups(self._optimizer, groups):
            step(self._optimizer)


@contextmanager
def _in_groups(optimizer: torch.optim.Optimizer, parts: Iterable[list[Any]]) -> Iterator[None]:
    """The groups of the optimizer have these parameters alone."""
    whole = [group["params"] for group in optimizer.param_groups]
    try:
        for group, part in zip(optimizer.param_groups, parts, strict=True):
            group["params"] = part
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters


def refusal(optimizer: torch.optim.Optimizer) -> str:
    """Why a step in parts might not be that of plain torch; empty: it is."""
    name = type(optimizer).__name__
    if type(optimizer) not in KNOWN or not hasattr(type(optimizer).step, "__wrapped__"):
        return f"{name} is no optimizer of torch.optim, and may look at all parameters together"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable"
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if len({one.device.type for one in parameters}) > 1 or any(type(one) not in _PLAIN for one in parameters):
        return f"{name} has parameters of several kinds, and chooses by all of them how it computes"
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    hooks += [*torch_optimizer._global_optimizer_pre_hooks.values()]
    hooks += [*torch_optimizer._global_optimizer_post_hooks.values()]
    if any(not _is_own(hook) for hook in hooks):
        return f"{name} has hooks of the script, which may look at all parameters"
    return ""


def _is_own(hook: Any) -> bool:
    return hook is watched_calls.before_step or isinstance(getattr(hook, "__self__", None), StepHooks)
