"""Hooks around every step of an optimizer, which give it a learning rate for the samples of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from dynamix_ps.errors import TrainingError


class PartSteps(Protocol):
    """Makes steps in parts."""

    def begin(self) -> None:
        """`step()` is about to begin, with its learning rates."""

    def wait(self, reason: str) -> None:
        """This step is made at once. `reason`: for people."""

    def end(self) -> None:
        """`step()` is over."""


def is_left_out(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler has let a fused optimizer step only to leave the weights as they are, for an overflow."""
    overflow = getattr(optimizer, "found_inf", None)  # there during such a step
    return overflow is not None and bool(overflow)


class StepHooks:
    """The hooks of one optimizer."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        before_step: Callable[[], float],
        after_step: Callable[[], None],
        in_parts: PartSteps | None = None,
    ) -> None:
        """`before_step` returns the factor on the learning rate of the coming step, or raises TrainingError.

        `in_parts`: takes the steps where gradients may be late.
        """
        self._optimizer, self._before_step, self._after_step = optimizer, before_step, after_step
        self._in_parts = in_parts
        self._rates: list[Any] | None = None  # of the script, during a step

    def install(self) -> list[Any]:
        """The handles, to remove them."""
        return [
            self._optimizer.register_step_pre_hook(self._before),
            self._optimizer.register_step_post_hook(self._after),
        ]

    def _before(self, _: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._set_rates()
            if self._in_parts is not None:
                try:
                    self._in_parts.begin()
                except BaseException:
                    self._restore_rates()
                    raise
            return None

        def closure_and_check() -> Any:
            loss = closure()
            self._set_rates()  # the closure has called run.backward()
            if self._in_parts is not None:
                self._in_parts.wait("step(closure) computes gradients inside of the step")
            return loss

        return args[:1], {**kwargs, "closure": closure_and_check}

    def _set_rates(self) -> None:
        if self._rates is not None:
            raise TrainingError("an optimizer called its closure twice in one step; call run.backward() before step()")
        factor = self._before_step()
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        if factor != 1.0:
            for group in self._optimizer.param_groups:
                group["lr"] = group["lr"] * factor  # for this step; a scheduler never sees it

    def _after(self, *_: Any) -> None:
        if self._in_parts is not None:
            self._in_parts.end()
        self._restore_rates()
        self._after_step()

    def _restore_rates(self) -> None:
        assert self._rates is not None, "the closure was not called"
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self._rates = None
