"""The hook for MXNet: every worker its own batch size, changed while training runs.

    import dynamix_ps.mxnet as dynamix                                          # 1  before mxnet itself
    import mxnet as mx
    from mxnet import autograd, gluon
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    run = dynamix.attach(net, trainer, train_set)                             # 2
    for inputs, targets in run.batches(epochs=3):                             # 3  in place of epochs and a DataLoader
        with autograd.record():
            loss = loss_function(net(inputs), targets).mean()
        run.backward(loss)                                                    # 4  in place of loss.backward()
        trainer.step(1)                                                       # 5  1: the gradient is a mean already

This module has only what is special to MXNet; training.py tells the story. The trainer waits for the sum where it would
reduce over devices, and scales the learning rate for each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dynamix_ps.numpy_names  # noqa: F401  (before mxnet)

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import Block, Trainer
from mxnet.gluon.parameter import DeferredInitializationError
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from worker_hooks import failure
from worker_hooks.checkpoint import Position
from worker_hooks.mxnet import state as mxnet_state
from worker_hooks.mxnet.batches import fetch
from worker_hooks.mxnet.gradients import MXNetExchange
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.training import Training

__all__ = ["Run", "attach"]

failure.install()


def attach(net: Block, trainer: Trainer, dataset: Any, *, batch_size: int = 64, seed: int | None = None) -> Run:
    """Join the other workers and take over batches, gradients and records of this model.

    Args:
        net: its parameters become rank 0's on every worker.
        trainer: of these parameters; its optimizer's state becomes rank 0's too.
        dataset: a Gluon data set, the same on every worker.
        batch_size: of each worker where no cluster file says otherwise.
        seed: of the data order where no cluster file says otherwise.

    Raises:
        ConfigError: the cluster file or a variable is wrong.
        EnvironmentNotReady: BytePS lacks its MXNet plugin, or the data plane is not one of MXNet's.
        TrainingError: data set, model, trainer or number of workers do not fit together.
        CheckpointError: the checkpoint to resume from is unusable.
    """
    return Run(net, trainer, dataset, Session(Settings.from_environment(), Run.framework), batch_size, seed)


class Run(Training):
    """One Gluon model in training."""

    framework = "mxnet"
    framework_version = mx.__version__
    checkpoint_suffix = ".npz"
    _exchange: MXNetExchange

    def __init__(
        self,
        net: Block,
        trainer: Trainer,
        dataset: Any,
        session: Session,
        batch_size: int = 64,
        seed: int | None = None,
    ) -> None:
        self.net, self.trainer = net, trainer
        _settle_shapes(net, dataset)
        _settle_kvstore(trainer)
        super().__init__(dataset, session, batch_size, seed)
        self._update = trainer._update
        trainer._allreduce_grads = self.synchronize  # also trainer.allreduce_grads(), to clip gradients after it
        trainer._update = self._step

    def _make_exchange(self, prefix: str) -> MXNetExchange:
        parameters = list(mxnet_state.named_parameters(self.net).values())
        return MXNetExchange(list(dict.fromkeys(parameters)), self._comm, self._settings.bucket_bytes, prefix)

    def _pack(self, position: Position) -> bytes:
        return mxnet_state.pack([self.net], [self.trainer], position)

    def _restore(self, packed: bytes) -> Position:
        return mxnet_state.restore(packed, [self.net], [self.trainer])

    def _check_storable(self, state: object) -> None:
        mxnet_state.check_storable(state)

    def _hyperparameters(self) -> Any:
        return mxnet_state.numbers(self.trainer)

    def _set_hyperparameters(self, saved: Any) -> None:
        vars(self.trainer._optimizer).update(saved)

    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        return fetch(dataset, indices)

    def _propagate(self, loss: Any) -> None:
        if loss.size != 1:
            raise TrainingError(
                f"run.backward() got {loss.size} losses, expected their mean: loss_function(...).mean()"
            )
        self._exchange.backward(loss)

    def _number(self, value: Any) -> float:
        return float(value.asscalar() if isinstance(value, mx.nd.NDArray) else value)

    def _script_lr(self) -> float:
        return float(self.trainer.learning_rate)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with autograd.pause():
            yield

    def _step(self, ignore_stale_grad: bool = False) -> None:
        """Replaces the trainer's own update."""
        divided_by = self.trainer._scale / self.trainer._optimizer.rescale_grad
        if divided_by != 1:
            raise TrainingError(
                f"trainer.step({divided_by:g}) would divide the gradient, which is the mean over all workers' samples "
                "already; call trainer.step(1)"
            )
        factor = self._before_step()
        multipliers = [parameter.lr_mult for parameter in self.trainer._params]
        for parameter, multiplier in zip(self.trainer._params, multipliers, strict=True):
            parameter.lr_mult = multiplier * factor  # for this step; a scheduler never sees it
        self._update(ignore_stale_grad)
        for parameter, multiplier in zip(self.trainer._params, multipliers, strict=True):
            parameter.lr_mult = multiplier
        self._after_step()


def _settle_shapes(net: Block, dataset: Any) -> None:
    """Run the first sample where Gluon would take shapes from the first batch: weights are shared before that."""
    try:
        for parameter in net.collect_params().values():
            parameter.data()
    except DeferredInitializationError:
        sample = fetch(dataset, np.zeros(0, dtype=np.int64))
        net(sample[0] if isinstance(sample, (list, tuple)) else sample)


def _settle_kvstore(trainer: Trainer) -> None:
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._kvstore is not None:
        raise TrainingError("the trainer has a kvstore of its own; make it with gluon.Trainer(..., kvstore=None)")
