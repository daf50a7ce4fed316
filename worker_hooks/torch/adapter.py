"""torch: what a training does in its own way there.

Gradients are sent while backward still computes (gradients.py), and they are global when `run.backward()` returns.
Hooks of the optimizers (step_hooks.py) check this, and scale the learning rate for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from dynamix_ps.errors import TrainingError
from worker_hooks.adapter import Adapter
from worker_hooks.loading.data_source import DataSource
from worker_hooks.memory.memory_ceiling import MemoryCeiling, WorkerMemory
from worker_hooks.sampling.shard_list import Shards
from worker_hooks.saved.checkpoint import Position
from worker_hooks.torch import watched_calls
from worker_hooks.torch.compiled import CompiledGraphs, mark_sizes
from worker_hooks.torch.data.batches import fetch, stack
from worker_hooks.torch.data.loader import RunBatchSampler, TorchLoader
from worker_hooks.torch.gradient_hooks import GradientHooks
from worker_hooks.torch.gradients import TorchExchange
from worker_hooks.torch.loss.batch_of_loss import batch_of
from worker_hooks.torch.loss.gathered_rows import gather
from worker_hooks.torch.loss.loss_graph import LossCheck
from worker_hooks.torch.parameters import TorchParameters
from worker_hooks.torch.schedulers import Schedulers
from worker_hooks.torch.script_calls import ScriptCalls
from worker_hooks.torch.state.state_copy import copy_state
from worker_hooks.torch.state.whole import TorchState
from worker_hooks.torch.step_hooks import is_left_out

if TYPE_CHECKING:
    from worker_hooks.session import Session
    from worker_hooks.settings import Settings
    from worker_hooks.torch.averages import WeightAverages
    from worker_hooks.torch.data.run_loader import RunLoader
    from worker_hooks.torch.memory.micro_batches import TorchMicroBatchedForward
    from worker_hooks.torch.memory.worker_batches import WorkerBatches
    from worker_hooks.training import Training

open_adapters: list[TorchAdapter] = []


class TorchAdapter(Adapter):
    """The models and the optimizers of one training in torch.

    Attributes:
        calls: of the script in torch.
    """

    framework = "torch"
    framework_version = torch.__version__
    checkpoint_suffix = ".pt"
    survives_lack_of_memory = True
    computes_for_several = True
    parameters: TorchParameters
    training: Training
    memory: WorkerMemory
    calls: ScriptCalls
    averages: WeightAverages | None = None
    _batches: WorkerBatches | None = None  # of a process that computes for several workers
    _forwards: Sequence[TorchMicroBatchedForward] = ()

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        ema_decay: float | None = None,
    ) -> None:
        """`ema_decay`: of averages of the weights; none: there are no averages."""
        self.models, self.optimizers, self._ema_decay = models, optimizers, ema_decay
        self.state = TorchState(models, optimizers)
        self._compiled = CompiledGraphs()
        self.parameters, self._script_hooks = TorchParameters(models, optimizers), GradientHooks()
        self._loss_check, self._schedulers = LossCheck(), Schedulers()

    def attached(self, training: Training) -> None:
        self.training = training
        if (late := self._exchange.late) is not None:
            late.sums = training.sums
        self.calls = ScriptCalls(training, self.optimizers, self.parameters, self._script_hooks)
        open_adapters.append(self)
        if self._ema_decay is not None:
            from worker_hooks.torch.averages import AVERAGES, WeightAverages

            self.averages = WeightAverages(self.parameters, self._ema_decay, training.plans.reference_batch)
            training.checkpoints.register(**{AVERAGES: self.averages})

    def begin_at(self, reference_batch: int) -> None:
        if self.averages is not None:
            self.averages.reference_batch = reference_batch

    @property
    def _exchange(self) -> TorchExchange:
        exchange = self.training.sums.exchange
        assert isinstance(exchange, TorchExchange)
        return exchange

    def shares(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether this training has one of these models or optimizers."""
        mine = {id(one) for one in (*self.models, *self.optimizers)}
        return bool(mine & {id(one) for one in (*models, *optimizers)})

    # -- what scripts call --------------------------------------------------------------------------------------------

    def clip_norm(self, max_norm: float, norm_type: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(self.parameters.with_gradient(), max_norm, norm_type)

    def clip_value(self, clip_value: float) -> None:
        torch.nn.utils.clip_grad_value_(self.parameters.with_gradient(), clip_value)

    def gather(self, tensor: torch.Tensor, training: Training) -> torch.Tensor:
        return gather(training, tensor)

    def batch_sampler(self, training: Training) -> RunBatchSampler:
        if training.data.is_stream:
            raise TrainingError("run.batch_sampler() names samples by number; a stream has none, use run.batches()")
        return RunBatchSampler(self.calls.batches_of, lambda: training.progress.batches_per_pass)

    def loader(self, training: Training) -> RunLoader:
        from worker_hooks.torch.data.run_loader import RunLoader  # many scripts have loops of the other kind

        return RunLoader(training)

    # -- what happens in an iteration ---------------------------------------------------------------------------------

    def has_mixed_gradients(self) -> bool:
        return self.calls.summed.are_among(self._exchange.touched)

    def drop_summed_gradients(self) -> bool:
        return self.calls.summed.drop(self._exchange.touched)

    def has_unseen(self) -> bool:
        return self.calls.has_unseen()

    def batch_begun(self) -> None:
        late = self._exchange.late
        if self.averages is not None:
            if late is not None and late.due:
                late.tell("ema_decay averages the weights after each step")
            self.averages.end_iteration()  # the one before, with all that the script has done in it
        if late is not None:
            late.batch_begun()

    def batch_finished(self) -> None:
        self._compiled.iteration_complete()

    def stepped(self, optimizer: int, batch_size: float, steps: int) -> None:
        if self.averages is not None and not is_left_out(self.calls.stepped_by[optimizer - 1]):
            self.averages.stepped(batch_size)
        if steps <= len(self.calls.stepped_by):  # the first steps have made the optimizers' states
            self.memory.ceiling.prove_anew()

    def look_up_schedules(self) -> None:
        self._schedulers.look_up(self.calls.stepped_by)

    def missed_ends(self, passes: int) -> Iterable[str]:
        return self._schedulers.missed_ends(passes)

    def prepare(self, data: Any, samples: int) -> None:
        mark_sizes(data, samples)

    # -- what a training needs of torch ------------------------------------------------------------------------------

    def lay_out(self, source: DataSource) -> list[str]:
        added = self.parameters.look_up()
        self._script_hooks.take_over(self.parameters.trained.items())
        if self.averages is not None:
            self.averages.follow()
        return added

    def setting(self) -> str:
        ema_decay = None if self.averages is None else self.averages.decay
        return self.parameters.settings.words(self.calls.stepped_by, self.parameters.norms, ema_decay)

    def make_exchange(self, prefix: str, session: Session) -> TorchExchange:
        parameters, bucket_bytes = self.parameters, session.settings.config.bucket_bytes
        comm, workers, hooks, late = session.comm, session.workers, self._script_hooks, None
        if session.settings.config.overlap != "backward" and comm.size > 1 and comm.elastic is None:
            from worker_hooks.torch.late_gradients import LateGradients  # few trainings have some

            late = LateGradients(session.degraded)
        return TorchExchange(parameters.trained, parameters.norms, comm, bucket_bytes, prefix, workers, hooks, late)

    def squared_norms(self, whole: float) -> Sequence[float]:
        if self._batches is None:
            return (whole,)
        if math.isnan(whole):
            return (whole,) * len(self.training.session.workers.here)
        return self._batches.squared_norms(self._exchange.gradient(), self._exchange.weight)

    def make_memory(self, ceiling: MemoryCeiling, tell: Callable[[str], None], training: Training) -> WorkerMemory:
        here, now = training.session.workers.here, training.now
        if len(here) > 1:
            from worker_hooks.torch.memory.worker_batches import ForwardOfWorkers, WorkerBatches

            batches = WorkerBatches(self.parameters, lambda: now, here, lambda: training.backward.measures)
            self._forwards = [ForwardOfWorkers(batches, self.parameters, model) for model in self.models]
            self.memory = self._batches = batches
        else:
            self.memory = memory = WorkerMemory(ceiling, lambda: self.parameters.smallest_share, lambda: now, tell)
            if ceiling.is_needed:
                from worker_hooks.torch.memory.micro_batches import TorchMicroBatchedForward

                self._forwards = [TorchMicroBatchedForward(memory, self.parameters, model) for model in self.models]
        return self.memory

    def detach(self) -> None:
        self.calls.close()
        self._script_hooks.close()
        if (late := self._exchange.late) is not None:
            late.end()
        for forward in self._forwards:
            forward.remove()
        open_adapters.remove(self)
        if made := self._compiled.made:
            self.training.session.reporter.event("compiled", graphs=made, later=self._compiled.made_later)

    def copy_state(self, position: Callable[[], Position], registered: Iterable[Any]) -> Callable[[], None]:
        averages = [one for one in registered if isinstance(one, torch.nn.Module)]
        own = () if self.averages is None else (self.averages,)
        return copy_state([*self.models, *averages], tuple(self.calls.stepped_by), own)

    def source_of(self, data: Any, settings: Settings, seed: int = 0, like: DataSource | None = None) -> DataSource:
        if isinstance(data, DataSource):
            return data
        if isinstance(data, Shards):
            from worker_hooks.loading.shard_source import ShardSource

            return ShardSource(data, like.collate if isinstance(like, ShardSource) else stack)
        if isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset):
            from worker_hooks.torch.data.iterable import IterableSource

            return IterableSource(data)
        if isinstance(data, DataLoader):
            return TorchLoader(data, settings.config.prefetch, seed)
        return super().source_of(data, settings, seed)

    def fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        return fetch(dataset, indices)

    def propagate(self, loss: Any) -> None:
        if self.training.now.units == 0 and not (isinstance(loss, torch.Tensor) and loss.requires_grad):
            return  # the loss of a worker without units may be a number
        self.memory.check_called()
        self.calls.backward(loss)

    def refused(self, loss: Any) -> str:
        now, sums, session = self.training.now, self.training.sums, self.training.session
        if session.workers.count == 1 or now.units is not None or not isinstance(loss, torch.Tensor):
            return ""
        if not self._loss_check.is_due(now.batch.iteration, now.batch.samples):
            return ""
        tell = partial(session.degraded, "loss") if sums.leads else None
        return self._loss_check.refusal(loss, now, sums.scale, not self._exchange.touched, tell)

    def batch_of(self, loss: Any, batches: Sequence[Any]) -> int | None:
        return batch_of(loss, batches)

    def loss_scale(self, loss: Any) -> float:
        return watched_calls.scale_of(loss)

    def number(self, value: Any) -> float:
        return float(value.item() if isinstance(value, torch.Tensor) else value)

    def script_lr(self) -> float:
        return float(self.optimizers[0].param_groups[0]["lr"])

    def averages_in_place(self) -> AbstractContextManager[None]:
        if self.averages is None:
            raise TrainingError("no weights are averaged; attach(..., ema_decay=0.999) averages them")
        return self.averages.in_place()

    @contextmanager
    def inference(self) -> Iterator[None]:
        modules = [module for model in self.models for module in model.modules() if module.training]
        for model in self.models:
            model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in modules:
                module.training = True
