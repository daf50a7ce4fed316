"""The hook for torch: every worker its own batch size, changed while training runs.

    import dynamix_ps.torch as dynamix                              # 1
    run = dynamix.attach(model, optimizer, train_set)             # 2
    for inputs, targets in run.batches(epochs=3):                 # 3  in place of epochs and a DataLoader
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        run.backward(loss)                                        # 4  in place of loss.backward()
        optimizer.step()

This module has only what is special to torch; training.py tells the story. Gradients are sent while backward still
computes (gradients.py). Hooks of the optimizer wait for their sum and scale the learning rate for each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worker_hooks import failure
from worker_hooks.checkpoint import Position
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch import state as torch_state
from worker_hooks.torch.batches import fetch
from worker_hooks.torch.gradients import TorchExchange
from worker_hooks.training import Training

__all__ = ["Run", "attach"]

failure.install()


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    batch_size: int = 64,
    seed: int | None = None,
) -> Run:
    """Join the other workers and take over batches, gradients and records of this model.

    Args:
        model: its parameters and buffers become rank 0's on every worker.
        optimizer: of these parameters; its state becomes rank 0's too.
        dataset: map style (`len`, `[i]`), the same on every worker.
        batch_size: of each worker where no cluster file says otherwise.
        seed: of the data order where no cluster file says otherwise.

    Raises:
        ConfigError: the cluster file or a variable is wrong.
        TrainingError: data set, model or number of workers do not fit together.
        CheckpointError: the checkpoint to resume from is unusable.
    """
    return Run(model, optimizer, dataset, Session(Settings.from_environment(), Run.framework), batch_size, seed)


class Run(Training):
    """One torch model in training."""

    framework = "torch"
    framework_version = torch.__version__
    checkpoint_suffix = ".pt"

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        session: Session,
        batch_size: int = 64,
        seed: int | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._base_rates: list[Any] = []
        super().__init__(dataset, session, batch_size, seed)
        optimizer.register_step_pre_hook(lambda *_: self._set_rates())
        optimizer.register_step_post_hook(lambda *_: self._reset_rates())

    def _make_exchange(self, prefix: str) -> TorchExchange:
        return TorchExchange(self.model, self._comm, self._settings.bucket_bytes, prefix)

    def _pack(self, position: Position) -> bytes:
        return torch_state.pack([self.model], [self.optimizer], position)

    def _restore(self, packed: bytes) -> Position:
        return torch_state.restore(packed, [self.model], [self.optimizer])

    def _check_storable(self, state: object) -> None:
        torch_state.check_storable(state)

    def _hyperparameters(self) -> Any:
        return torch_state.hyperparameters([self.optimizer])

    def _set_hyperparameters(self, saved: Any) -> None:
        torch_state.set_hyperparameters([self.optimizer], saved)

    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        return fetch(dataset, indices)

    def _propagate(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def _number(self, value: Any) -> float:
        return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)

    def _script_lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @contextmanager
    def _inference(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)

    def _set_rates(self) -> None:
        factor = self._before_step()
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]
        if factor != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * factor  # for this step; a scheduler never sees it

    def _reset_rates(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate
        self._after_step()
