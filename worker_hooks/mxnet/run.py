"""The hook for MXNet: every worker its own batch size, changed while training runs.

    import dynamix_ps.mxnet as dynamix                                          # 1  before mxnet itself
    import mxnet as mx
    from mxnet import autograd, gluon
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    run = dynamix.attach(net, trainer, loader)                                # 2
    for inputs, targets in run.batches(epochs=3):                             # 3  in place of epochs and loader
        with autograd.record():
            loss = loss_function(net(inputs), targets).mean()
        run.backward(loss)                                                    # 4  in place of loss.backward()
        trainer.step(1)                                                       # 5  1: the gradient is a mean already

This module has only what is special to MXNet; training.py tells the story. Gradients are global when `run.backward()`
returns, so the trainer has nothing to reduce; it scales the learning rate for each step.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import dynamix_ps.numpy_names  # noqa: F401  (before mxnet)

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import Block, Trainer
from mxnet.gluon.data import DataLoader
from mxnet.gluon.parameter import DeferredInitializationError
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from worker_hooks import failure
from worker_hooks.before_all import Place, run_before_all
from worker_hooks.checkpoint import Position
from worker_hooks.data_source import DataSource
from worker_hooks.memory_ceiling import MemoryCeiling
from worker_hooks.mxnet import state as mxnet_state
from worker_hooks.mxnet.batches import fetch
from worker_hooks.mxnet.gradients import MXNetExchange
from worker_hooks.mxnet.loader import GluonLoader
from worker_hooks.mxnet.memory import MXNetMemory
from worker_hooks.mxnet.micro_batches import MicroBatchedForward
from worker_hooks.mxnet.parameters import TOLERANCE, TrainedParameters, mean_loss
from worker_hooks.schedules import missed_end
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.training import Training

__all__ = ["Run", "attach", "before_all"]

failure.install()


def attach(
    net: Block,
    trainer: Trainer,
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    lengths: Any = None,
) -> Run:
    """Join the other workers and take over batches, gradients and records of this model.

    A training that is still attached to this model or trainer ends.

    Args:
        net: its parameters become rank 0's on every worker.
        trainer: of these parameters; its optimizer's state becomes rank 0's too.
        data: a Gluon DataLoader of the script, or a data set (`len`, `[i]`); the same on every worker.
        batch_size: of each worker where no cluster file says otherwise. Without it, the loader's, or 64.
        seed: of the data order where no cluster file says otherwise.
        lengths: tokens of every sample of the data set, whole numbers, where `batch.unit` in the cluster file says so.

    Raises:
        ConfigError: the cluster file or a variable is wrong.
        EnvironmentNotReady: BytePS lacks its MXNet plugin, or the data plane is not one of MXNet's.
        TrainingError: data, model, trainer or number of workers do not fit together.
        CheckpointError: the checkpoint to resume from is unusable.
    """
    settings = Settings.from_environment()
    if batch_size and isinstance(data, DataLoader):
        raise TrainingError("attach() got a DataLoader and batch_size=...; give batch_size to the DataLoader")
    for run in [run for run in _open if run.net is net or run.trainer is trainer]:
        run.close()
    session = Session.join(settings, Run.framework)
    return Run(net, trainer, data, session, batch_size, seed, lengths)


_open: list[Run] = []


def before_all(prepare: Callable[[], object] | None = None) -> Place:
    """As `dynamix_ps.torch.before_all`: worker 0 calls `prepare()` while the others wait. Before `attach`."""
    return run_before_all(Run.framework, prepare)


class Run(Training):
    """One Gluon model in training."""

    framework = "mxnet"
    framework_version = mx.__version__
    checkpoint_suffix = ".npz"
    _exchange: MXNetExchange
    _memory: MXNetMemory
    _forward: MicroBatchedForward | None = None

    def __init__(
        self,
        net: Block,
        trainer: Trainer,
        data: Any,
        session: Session,
        batch_size: int | None = None,
        seed: int | None = None,
        lengths: Any = None,
    ) -> None:
        self.net, self.trainer = net, trainer
        self._parameters = TrainedParameters(net, trainer)
        super().__init__(data, session, batch_size, seed, lengths)
        self._update = trainer._update
        trainer._allreduce_grads = self.synchronize  # also trainer.allreduce_grads(), where others clip after it
        trainer._update = self._step
        _open.append(self)
        _watch_trainers()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the global gradient down to this norm if it is larger; returns its norm before."""
        self.synchronize()
        gradients = [one.grad() for one in self._parameters.trained.values()]
        norm: float = gluon.utils.clip_global_norm(gradients, max_norm, check_isfinite=True)
        return norm

    def gather(self, array: Any) -> Any:
        """Raises TrainingError: losses over the rows of all workers are possible in torch alone."""
        raise TrainingError(
            "run.gather() is not possible in mxnet; what is trained is the mean over workers of the losses over the "
            "pairs of each worker's own samples, or use torch"
        )

    def clip_grad_value_(self, clip_value: float) -> None:
        """Limit every value of the global gradient to this size."""
        self.synchronize()
        for parameter in self._parameters.trained.values():
            gradient = parameter.grad()
            gradient[:] = mx.nd.clip(gradient, -clip_value, clip_value)

    def _lay_out(self) -> list[str]:
        _settle_shapes(self.net, self._source)
        _settle_kvstore(self.trainer)
        return self._parameters.look_up()

    def _parameters_changed(self) -> bool:
        return self._parameters.changed()

    def _follow_parameters(self, before_forward: bool) -> None:
        if not before_forward and self._parameters_changed():
            self._announce("changes parameters after the batch was handed out")
            raise TrainingError(
                "parameters were changed after the loop had asked for the batch, when MXNet has recorded where "
                "gradients go; change them before, at the end of the loop body"
            )
        super()._follow_parameters(before_forward)

    def _layout_code(self) -> int:
        return self._parameters.code

    def _described_parameters(self) -> dict[str, str]:
        return self._parameters.described()

    def _setting(self) -> str:
        return f"learning rate {self.trainer.learning_rate}, weight decay {self.trainer._optimizer.wd}"

    def _sample_weights(self, number: int) -> tuple[float, float]:
        return self._parameters.samples.part(number) if self._comm.size > 1 else (0.0, 0.0)

    def _all_weights(self) -> dict[str, tuple[float, float]]:
        return self._parameters.samples.each(self._sums - 1)

    def _weights_tolerance(self) -> float:
        return TOLERANCE

    def _pack_parameters(self, names: list[str]) -> bytes:
        return self._parameters.pack(names)

    def _unpack_parameters(self, names: list[str], values: bytes) -> None:
        self._parameters.unpack(values)

    def _smallest_share(self) -> int:
        return 2 if self._parameters.statistics() else 1

    def _make_exchange(self, prefix: str) -> MXNetExchange:
        parameters, bucket_bytes = self._parameters, self._settings.bucket_bytes
        return MXNetExchange(
            parameters.trained, parameters.statistics(), self._comm, bucket_bytes, prefix, self._workers
        )

    def _make_memory(self, ceiling: MemoryCeiling, tell: Callable[[str], None]) -> MXNetMemory:
        seed = (self._stream.seed, self.rank)
        memory = MXNetMemory(ceiling, self._parameters, lambda: self._now, tell, lambda: self._steps, seed)
        self._forward = MicroBatchedForward(memory, self.net) if ceiling.is_needed else None
        return memory

    def _detach(self) -> None:
        self.trainer._update = self._update
        del self.trainer._allreduce_grads  # the class has its own
        if self._forward is not None:
            self._forward.remove()
        _open.remove(self)

    def _write(self, position: Position, out: BinaryIO) -> None:
        mxnet_state.write([self.net], [self.trainer], position, out)

    def _restore(self, packed: BinaryIO) -> Position:
        return mxnet_state.restore(packed, [self.net], [self.trainer])

    def _copy_state(self) -> Callable[[], None]:
        packed, optimizer = self._pack(self._position()), self.trainer._optimizer

        def put_back() -> None:
            settings, updates = self._hyperparameters(), dict(optimizer._index_update_count)
            self._restore(io.BytesIO(packed))
            self._set_hyperparameters(settings)
            optimizer._index_update_count.update(updates)  # by which schedulers count

        return put_back

    def _storable(self, state: Any, where: str) -> Any:
        return mxnet_state.storable(state, where)

    def _hyperparameters(self) -> Any:
        return mxnet_state.numbers(self.trainer)

    def _set_hyperparameters(self, saved: Any) -> None:
        vars(self.trainer._optimizer).update(saved)

    def _source_of(self, data: Any, seed: int = 0) -> DataSource:
        if isinstance(data, DataLoader):
            return GluonLoader(data, self._settings.prefetch, seed)
        return super()._source_of(data, seed)

    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        return fetch(dataset, indices)

    def _propagate(self, loss: Any) -> None:
        if self._now.units == 0:
            return  # 0 times a gradient that is NaN would be NaN
        self._memory.check_called()
        self._exchange.backward(mean_loss(loss), self._memory.repetitions())

    def _missed_ends(self, passes: int) -> Iterable[str]:
        optimizer = self.trainer.optimizer
        scheduler = optimizer.lr_scheduler
        planned = getattr(scheduler, "max_update", 0)
        told = planned and missed_end(
            type(scheduler).__name__, optimizer.num_update, planned, self._script_lr(), passes
        )
        return [told] if told else []

    def _loss_scale(self, loss: Any) -> float:
        return 1.0

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


def _watch_trainers() -> None:
    """From now on a step of a trainer that no training knows is refused while one of several workers is open."""
    original = Trainer.step
    if getattr(original, "watched", False):
        return

    def step(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if any(run.size > 1 for run in _open) and not any(run.trainer is trainer for run in _open):
            raise TrainingError(
                "a trainer steps that no training knows, so its gradients would be those of this worker alone; "
                "give all parameters to the trainer of attach()"
            )
        original(trainer, *args, **kwargs)

    step.watched = True  # type: ignore[attr-defined]
    Trainer.step = step


def _settle_shapes(net: Block, source: DataSource) -> None:
    """Run the first samples where Gluon would take shapes from the first batch: weights are shared before that."""
    try:
        for parameter in net.collect_params().values():
            parameter.data()
    except DeferredInitializationError:
        batch = source.fetch(np.zeros(0, dtype=np.int64))
        inputs = batch[0] if isinstance(batch, (list, tuple)) else batch
        if isinstance(inputs, mx.nd.NDArray):
            inputs = inputs.as_in_context(parameter.list_ctx()[0])  # a loader's processes put it into shared memory
        net(inputs)


def _settle_kvstore(trainer: Trainer) -> None:
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._kvstore is not None:
        raise TrainingError("the trainer has a kvstore of its own; make it with gluon.Trainer(..., kvstore=None)")
