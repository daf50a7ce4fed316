"""MXNet: what a training does in its own way there.

Gradients are global when `run.backward()` returns, so the trainer has nothing to reduce; the adapter takes the place of
its update, and scales the learning rate for each step.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
from worker_hooks.adapter import Adapter
from worker_hooks.loading.data_source import DataSource
from worker_hooks.memory.memory_ceiling import MemoryCeiling
from worker_hooks.mxnet.batches import fetch
from worker_hooks.mxnet.gradients import MXNetExchange
from worker_hooks.mxnet.loader import GluonLoader
from worker_hooks.mxnet.memory import MXNetMemory
from worker_hooks.mxnet.micro_batches import MXNetMicroBatchedForward
from worker_hooks.mxnet.parameters import MXNetParameters, mean_loss
from worker_hooks.mxnet.state import MXNetState
from worker_hooks.planning.schedules import missed_end
from worker_hooks.saved.checkpoint import Position

if TYPE_CHECKING:
    from worker_hooks.session import Session
    from worker_hooks.settings import Settings
    from worker_hooks.training import Training

open_adapters: list[MXNetAdapter] = []


class MXNetAdapter(Adapter):
    """The net and the trainer of one training in MXNet."""

    framework = "mxnet"
    framework_version = mx.__version__
    checkpoint_suffix = ".npz"
    parameters: MXNetParameters
    training: Training
    memory: MXNetMemory
    _forward: MXNetMicroBatchedForward | None = None

    def __init__(self, net: Block, trainer: Trainer) -> None:
        self.net, self.trainer = net, trainer
        self.models, self.optimizers = [net], [trainer]
        self.parameters, self.state = MXNetParameters(net, trainer), MXNetState(net, trainer)

    def attached(self, training: Training) -> None:
        self.training, self.own_update = training, self.trainer._update
        # also trainer.allreduce_grads(), where others clip after it
        self.trainer._allreduce_grads = training.now.check_summed
        self.trainer._update = self._step
        open_adapters.append(self)
        _watch_trainers()

    def clip_norm(self, max_norm: float, norm_type: float) -> float:
        if norm_type != 2:
            raise TrainingError(f"run.clip_grad_norm_(norm_type={norm_type:g}) is not possible in mxnet; give 2")
        gradients = [one.grad() for one in self.parameters.trained.values()]
        norm: float = gluon.utils.clip_global_norm(gradients, max_norm, check_isfinite=True)
        return norm

    def clip_value(self, clip_value: float) -> None:
        for parameter in self.parameters.trained.values():
            gradient = parameter.grad()
            gradient[:] = mx.nd.clip(gradient, -clip_value, clip_value)

    def lay_out(self, source: DataSource) -> list[str]:
        _settle_shapes(self.net, source)
        _settle_kvstore(self.trainer)
        return self.parameters.look_up()

    def refused_change(self, before_forward: bool) -> str:
        if before_forward:
            return ""
        return (
            "parameters were changed after the loop had asked for the batch, when MXNet has recorded where gradients "
            "go; change them before, at the end of the loop body"
        )

    def setting(self) -> str:
        return f"learning rate {self.trainer.learning_rate}, weight decay {self.trainer._optimizer.wd}"

    def make_exchange(self, prefix: str, session: Session) -> MXNetExchange:
        parameters, statistics = self.parameters.trained, self.parameters.statistics()
        return MXNetExchange(
            parameters, statistics, session.comm, session.settings.config.bucket_bytes, prefix, session.workers
        )

    def make_memory(self, ceiling: MemoryCeiling, tell: Callable[[str], None], training: Training) -> MXNetMemory:
        now, progress = training.now, training.progress
        seed = (training.data.stream.seed, training.session.workers.here.start)
        self.memory = MXNetMemory(ceiling, self.parameters, lambda: now, tell, lambda: progress.steps, seed)
        self._forward = MXNetMicroBatchedForward(self.memory, self.net) if ceiling.is_needed else None
        return self.memory

    def detach(self) -> None:
        self.trainer._update = self.own_update
        del self.trainer._allreduce_grads  # the class has its own
        if self._forward is not None:
            self._forward.remove()
        open_adapters.remove(self)

    def copy_state(self, position: Callable[[], Position], registered: Iterable[Any]) -> Callable[[], None]:
        packed, optimizer = self.state.pack(position()), self.trainer._optimizer

        def put_back() -> None:
            settings, updates = self.state.hyperparameters(), dict(optimizer._index_update_count)
            self.state.restore(io.BytesIO(packed))
            self.state.set_hyperparameters(settings)
            optimizer._index_update_count.update(updates)  # by which schedulers count

        return put_back

    def source_of(self, data: Any, settings: Settings, seed: int = 0, like: DataSource | None = None) -> DataSource:
        if isinstance(data, DataLoader):
            return GluonLoader(data, settings.config.prefetch, seed)
        return super().source_of(data, settings, seed)

    def fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        return fetch(dataset, indices)

    def propagate(self, loss: Any) -> None:
        if self.training.now.units == 0:
            return  # 0 times a gradient that is NaN would be NaN
        self.memory.check_called()
        exchange = self.training.sums.exchange
        assert isinstance(exchange, MXNetExchange)
        exchange.backward(mean_loss(loss), self.memory.repetitions())

    def missed_ends(self, passes: int) -> Iterable[str]:
        optimizer = self.trainer.optimizer
        scheduler = optimizer.lr_scheduler
        planned = getattr(scheduler, "max_update", 0)
        told = planned and missed_end(type(scheduler).__name__, optimizer.num_update, planned, self.script_lr(), passes)
        return [told] if told else []

    def loss_scale(self, loss: Any) -> float:
        return 1.0

    def number(self, value: Any) -> float:
        return float(value.asscalar() if isinstance(value, mx.nd.NDArray) else value)

    def script_lr(self) -> float:
        return float(self.trainer.learning_rate)

    @contextmanager
    def inference(self) -> Iterator[None]:
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
        factor = self.training.before_step()
        multipliers = [parameter.lr_mult for parameter in self.trainer._params]
        for parameter, multiplier in zip(self.trainer._params, multipliers, strict=True):
            parameter.lr_mult = multiplier * factor  # for this step; a scheduler never sees it
        self.own_update(ignore_stale_grad)
        for parameter, multiplier in zip(self.trainer._params, multipliers, strict=True):
            parameter.lr_mult = multiplier
        self.training.after_step()


def _watch_trainers() -> None:
    """From now on a step of a trainer that no training knows is refused while one of several workers is open."""
    original = Trainer.step
    if getattr(original, "watched", False):
        return

    def step(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        several = any(one.training.session.workers.count > 1 for one in open_adapters)
        if several and not any(one.trainer is trainer for one in open_adapters):
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
