"""The hook for torch: every worker its own batch size, changed while training runs.

    import dynamix_ps.torch as dynamix                              # 1
    run = dynamix.attach(model, optimizer, train_set)             # 2
    for inputs, targets in run.batches(epochs=3):                 # 3  in place of epochs and a DataLoader
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        run.backward(loss)                                        # 4  in place of loss.backward()
        optimizer.step()

Several models and optimizers are one training: `attach([g, d], [g_optimizer, d_optimizer], train_set)`.

This module has only what is special to torch; training.py tells the story. Gradients are sent while backward still
computes (gradients.py), and they are global when `run.backward()` returns. Hooks of the optimizers (step_hooks.py)
check this, and scale the learning rate for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from dynamix_ps.errors import TrainingError
from worker_hooks.batches import Batch
from worker_hooks.checkpoint import Position
from worker_hooks.data_source import DataSource
from worker_hooks.memory_ceiling import MemoryCeiling
from worker_hooks.session import Session
from worker_hooks.shard_list import Shards
from worker_hooks.stream_source import ShardSource, StreamSource
from worker_hooks.torch import state as torch_state
from worker_hooks.torch import watched_calls
from worker_hooks.torch.averages import AVERAGES, WeightAverages
from worker_hooks.torch.batch_of_loss import batch_of
from worker_hooks.torch.batches import fetch, stack
from worker_hooks.torch.compiled import CompiledGraphs, mark_sizes
from worker_hooks.torch.gathered_rows import gather
from worker_hooks.torch.gradient_hooks import GradientHooks
from worker_hooks.torch.gradients import TorchExchange
from worker_hooks.torch.iterable import IterableSource
from worker_hooks.torch.loader import CLOSED, RunBatchSampler, TorchLoader, check_loader
from worker_hooks.torch.loss_graph import LossCheck
from worker_hooks.torch.memory import TorchMemory
from worker_hooks.torch.micro_batches import MicroBatchedForward
from worker_hooks.torch.parameters import TrainedParameters
from worker_hooks.torch.schedulers import Schedulers
from worker_hooks.torch.state_copy import copy_state
from worker_hooks.torch.step_hooks import StepHooks, is_left_out
from worker_hooks.torch.storable import storable
from worker_hooks.torch.summed_gradients import SummedGradients
from worker_hooks.torch.worker_batches import ForwardOfWorkers, WorkerBatches
from worker_hooks.training import Training

open_runs: list[Run] = []


class Run(Training):
    """One training in torch."""

    framework = "torch"
    framework_version = torch.__version__
    checkpoint_suffix = ".pt"
    survives_lack_of_memory = True
    computes_for_several = True
    _exchange: TorchExchange
    _memory: TorchMemory
    _forwards: Sequence[MicroBatchedForward] = ()
    _in_backward = False
    _loader: DataLoader[Any] | None = None  # with `batch_sampler()`, that the batches come from
    _averages: WeightAverages | None = None
    _additions = 0  # gradients that were added outside run.backward(), as far as their losses are known

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        data: Any,
        session: Session,
        batch_size: int | None = None,
        seed: int | None = None,
        lengths: Any = None,
        ema_decay: float | None = None,
    ) -> None:
        self.models, self.optimizers = models, optimizers
        self._compiled = CompiledGraphs()
        self._parameters, self._script_hooks = TrainedParameters(models, optimizers), GradientHooks()
        self._summed, self._loss_check = SummedGradients(self._parameters), LossCheck()
        super().__init__(data, session, batch_size, seed, lengths)
        self._hooks: list[Any] = []
        self._schedulers = Schedulers()
        self.stepped_by: list[torch.optim.Optimizer] = []  # `optimizers`, and those of later phases
        for optimizer in optimizers:
            self.hook_steps(optimizer)
        watched_calls.watch(self)
        open_runs.append(self)
        if ema_decay is not None:
            self._averages = WeightAverages(self._parameters, ema_decay, self._reference_batch)
            self.register(**{AVERAGES: self._averages})

    def _place(self, start: Position) -> None:
        super()._place(start)
        if self._averages is not None:
            self._averages.reference_batch = self._reference_batch

    def shares(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether this training has one of these models or optimizers."""
        mine = {id(one) for one in (*self.models, *self.optimizers)}
        return bool(mine & {id(one) for one in (*models, *optimizers)})

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the global gradient down to this norm if it is larger; returns its norm before."""
        self.synchronize()
        return torch.nn.utils.clip_grad_norm_(self._parameters.with_gradient(), max_norm, norm_type)

    def clip_grad_value_(self, clip_value: float) -> None:
        """Limit every value of the global gradient to this size."""
        self.synchronize()
        torch.nn.utils.clip_grad_value_(self._parameters.with_gradient(), clip_value)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of all workers, in the order of their ranks, for losses over pairs in a batch. Collective.

            rows, labels = run.gather(model(inputs)), run.gather(targets)
            run.backward(supervised_contrastive(rows, labels))

        Compute the loss over all rows, the same on every worker: its gradient is then that of one process that has the
        whole batch. Losses over this worker's own samples, as means, and penalties on weights may be added to it.

        Workers may have different numbers of rows, or none: those of a worker whose share is empty are left out. All
        else of the shape and the type must be the same. Each worker's rows are sent to all workers, in each call.
        Under `torch.no_grad()`, and for labels, it only returns the rows.

        Every worker must call it as often as the others, and what is random behind it must be the same on all. Layers
        before it, such as batch norm, see this worker's samples alone, as in every training here.

        Raises:
            TrainingError: on all workers and before a weight changes, if another one does something else, if the
                losses depend on the rows in different ways, or if the loss is given to run.backward() with `weight` or
                `reduction="sum"`.
            PeerLostError: on all workers, if a worker is lost whose rows are in a loss.
        """
        return gather(self, self._gathers, tensor)

    def batch_sampler(self) -> RunBatchSampler:
        """For a DataLoader of the script: `loader = DataLoader(dataset, batch_sampler=run.batch_sampler())`.

        `dataset` is the one that `attach` got. Each loop over the loader is a pass over the data, as
        `run.batches(epochs=1)` is.

        Raises TrainingError where `attach` got a stream.
        """
        if isinstance(self._source, StreamSource):
            raise TrainingError("run.batch_sampler() names samples by number; a stream has none, use run.batches()")
        return RunBatchSampler(self._batches_of, lambda: self.batches_per_pass)

    def _batches_of(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if self._closed:
            raise TrainingError(CLOSED)
        if loader is not self._loader:
            check_loader(loader)
            if loader.dataset is not self._source.dataset:
                raise TrainingError(
                    "a DataLoader with run.batch_sampler() has another data set than attach() got; pass the same object"
                )
            self._load_with(TorchLoader(loader, self._settings.prefetch, self._stream.seed))
            self._loader = loader
        return self.batches(epochs=1)

    # -- what the script calls in torch (watched_calls.py) ------------------------------------------------------------

    def sees_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """A backward outside `run.backward()` is about to add to the gradients of the batch that its loss is of."""
        if self._in_backward:
            return
        if self._taken.is_open:
            self._loops.settle(losses[0])
        if self._reduction.kind == "sum" and not self._has_local:
            self._summed.note()

    def _has_mixed_gradients(self) -> bool:
        return self._summed.are_among(self._exchange.touched)

    def _drop_summed_gradients(self) -> bool:
        return self._summed.drop(self._exchange.touched)

    def saw_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """A backward outside `run.backward()` has added to the gradients of the present batch: its loss counts too."""
        if self._in_backward or not self._now.has_batch:
            return
        if self._exchange.additions == self._additions and not self._has_unseen():
            return
        self._additions = self._exchange.additions
        values = [float(loss.detach()) / watched_calls.scale_of(loss) for loss in losses if loss.numel() == 1]
        self._now.add_loss(sum(values))

    def _has_unseen(self) -> bool:
        """Whether parameters that were thawed or added for the present batch have gradients of it already."""
        return self._parameters.changed() and any(
            p.requires_grad and self._exchange.lacks(p) for p in self._parameters.with_gradient()
        )

    @property
    def _has_local(self) -> bool:
        return self._exchange.has_local or self._has_unseen()

    def saw_hook(self, tensor: torch.Tensor) -> None:
        """The script has registered a hook on the gradient of `tensor`."""
        self._script_hooks.take_over((name, p) for name, p in self._parameters.trained.items() if p is tensor)

    def sees_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over an optimizer that attach() does not know, if its gradients are summed.

        Raises TrainingError, before it steps, if they are not.
        """
        if any(optimizer in run.stepped_by for run in open_runs):
            return
        stepped = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.nn.Parameter)]
        if not any(p.requires_grad for p in stepped):
            return  # frozen layers belong to every training and to none
        if summed := next((run for run in open_runs if run.sums(stepped)), None):
            summed.hook_steps(optimizer)
        elif self.size > 1:
            raise TrainingError(
                f"an optimizer ({type(optimizer).__name__}) steps parameters that no training sums, so their gradients "
                "would be those of this worker alone; pass all models and optimizers to attach(): "
                "attach([first, second], [first_optimizer, second_optimizer], data)"
            )

    def sums(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        """Whether the gradients of all these parameters are summed in this training."""
        return set(self._parameters.trained.values()).issuperset(p for p in parameters if p.requires_grad)

    def hook_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on steps of `optimizer` belong to this training."""
        self.stepped_by.append(optimizer)
        number = len(self.stepped_by)

        def before_step() -> float:
            self._check_global(optimizer)
            return self._before_step(number)

        self._hooks += StepHooks(optimizer, before_step, partial(self._after_step, number)).install()

    def _check_global(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises TrainingError if a gradient that `optimizer` would step is of this worker alone."""
        touched = self._exchange.touched
        if touched and any(p in touched for group in optimizer.param_groups for p in group["params"]):
            raise TrainingError(
                "loss.backward() has added gradients of this worker alone since run.backward(); "
                "call run.backward(loss) for the last loss before optimizer.step()"
            )
        if self.size == 1:
            return
        for name, parameter in self._parameters.frozen.items():
            if not self._exchange.is_global(parameter) and any(
                parameter is one for group in optimizer.param_groups for one in group["params"]
            ):
                raise TrainingError(
                    f"parameter {name} was trained for a while between two sums, so its gradient is that of this "
                    "worker alone; freeze and thaw parameters at the begin of the loop body, or call zero_grad() first"
                )

    def _begin_batch(self, batch: Batch) -> None:
        super()._begin_batch(batch)
        if self._averages is not None:
            self._averages.end_iteration()  # the one before, with all that the script has done in it

    def _look_up_schedules(self) -> None:
        self._schedulers.look_up(self.stepped_by)

    def _missed_ends(self, passes: int) -> Iterable[str]:
        return self._schedulers.missed_ends(passes)

    def _prepare(self, data: Any, samples: int) -> None:
        mark_sizes(data, samples)

    def _finish_batch(self) -> None:
        super()._finish_batch()
        self._compiled.iteration_complete()

    # -- what training.py needs of torch ------------------------------------------------------------------------------

    def _lay_out(self) -> list[str]:
        added = self._parameters.look_up()
        self._script_hooks.take_over(self._parameters.trained.items())
        if self._averages is not None:
            self._averages.follow()
        return added

    def _parameters_changed(self) -> bool:
        return self._parameters.changed()

    def _layout_code(self) -> int:
        return self._parameters.code

    def _described_parameters(self) -> dict[str, str]:
        return self._parameters.described()

    def _setting(self) -> str:
        told = [
            f"{name} {group[name]}"
            for optimizer in self.stepped_by
            for group in optimizer.param_groups
            for name in ("lr", "momentum", "betas", "weight_decay")
            if name in group
        ]
        if any(not norm.training for norm in self._parameters.norms):
            told.append("batch norm " + "".join("t" if norm.training else "e" for norm in self._parameters.norms))
        if self._averages is not None:
            told.append(f"ema_decay {self._averages.decay}")
        return ", ".join(told)

    def _sample_weights(self, number: int) -> tuple[float, float]:
        return self._parameters.samples.part(number) if self._comm.size > 1 else (0.0, 0.0)

    def _all_weights(self) -> dict[str, tuple[float, float]]:
        return self._parameters.samples.each(self._sums - 1)

    def _weights_tolerance(self) -> float:
        return self._parameters.tolerance

    def _pack_parameters(self, names: list[str]) -> bytes:
        return self._parameters.pack(names)

    def _unpack_parameters(self, names: list[str], values: bytes) -> None:
        self._parameters.unpack(values)

    def _smallest_share(self) -> int:
        return 2 if self._parameters.has_batch_norm else 1

    def _make_exchange(self, prefix: str) -> TorchExchange:
        parameters, bucket_bytes = self._parameters, self._settings.bucket_bytes
        workers, hooks = self._workers, self._script_hooks
        return TorchExchange(parameters.trained, parameters.norms, self._comm, bucket_bytes, prefix, workers, hooks)

    def _squared_norms(self, whole: float) -> Sequence[float]:
        if not isinstance(self._memory, WorkerBatches):
            return (whole,)
        if math.isnan(whole):
            return (whole,) * len(self._workers.here)
        return self._memory.squared_norms(self._exchange.gradient(), self._exchange.weight)

    def _make_memory(self, ceiling: MemoryCeiling, tell: Callable[[str], None]) -> TorchMemory:
        here = self._workers.here
        if len(here) > 1:
            batches = WorkerBatches(self._parameters, lambda: self._now, here, lambda: self._measures)
            self._forwards = [ForwardOfWorkers(batches, model) for model in self.models]
            return batches
        memory = TorchMemory(ceiling, self._parameters, lambda: self._now, tell)
        self._forwards = [MicroBatchedForward(memory, model) for model in self.models] if ceiling.is_needed else []
        return memory

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        watched_calls.unwatch(self)
        self._script_hooks.close()
        for forward in self._forwards:
            forward.remove()
        open_runs.remove(self)
        if made := self._compiled.made:
            self._session.reporter.event("compiled", graphs=made, later=self._compiled.made_later)

    def _write(self, position: Position, out: BinaryIO) -> None:
        torch_state.write(self.models, self.optimizers, position, out)

    def _restore(self, packed: BinaryIO) -> Position:
        return torch_state.restore(packed, self.models, self.optimizers)

    def _send_state(self, position: Position, out: BinaryIO) -> None:
        torch_state.send(self.models, self.optimizers, position, out)

    def _receive_state(self, state: BinaryIO) -> Position:
        return torch_state.receive(state, self.models, self.optimizers)

    def _copy_state(self) -> Callable[[], None]:
        averages = [one for one in self._registered.values() if isinstance(one, torch.nn.Module)]
        own = () if self._averages is None else (self._averages,)
        return copy_state([*self.models, *averages], tuple(self.stepped_by), own)

    def _storable(self, state: Any, where: str) -> Any:
        return storable(state, where)

    def _hyperparameters(self) -> Any:
        return torch_state.hyperparameters(self.optimizers)

    def _set_hyperparameters(self, saved: Any) -> None:
        torch_state.set_hyperparameters(self.optimizers, saved)

    def _source_of(self, data: Any, seed: int = 0) -> DataSource:
        if isinstance(data, DataSource):
            return data
        if isinstance(data, Shards):
            return ShardSource(data, self._source.collate if isinstance(self._source, ShardSource) else stack)
        if isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset):
            return IterableSource(data)
        if isinstance(data, DataLoader):
            return TorchLoader(data, self._settings.prefetch, seed)
        return super()._source_of(data, seed)

    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        return fetch(dataset, indices)

    def _after_step(self, optimizer: int = 0) -> None:
        super()._after_step(optimizer)
        if self._averages is not None and not is_left_out(self.stepped_by[optimizer - 1]):
            assert self._now.sum is not None
            self._averages.stepped(self._now.sum.batch_size)
        if self._steps <= len(self.stepped_by):  # the first steps have made the optimizers' states
            self._memory.ceiling.prove_anew()

    def _propagate(self, loss: Any) -> None:
        if self._now.units == 0 and not (isinstance(loss, torch.Tensor) and loss.requires_grad):
            return  # the loss of a worker without units may be a number
        self._memory.check_called()
        self._in_backward = True
        try:
            loss.backward()
        finally:
            self._in_backward = False

    def _refused(self, loss: Any) -> str:
        if self.size == 1 or self._now.units is not None or not isinstance(loss, torch.Tensor):
            return ""
        tell = partial(self._degraded, "loss") if self._leads else None
        return self._loss_check.refusal(loss, self._now, self._scale, not self._exchange.touched, tell)

    def _batch_of(self, loss: Any, batches: Sequence[Any]) -> int | None:
        return batch_of(loss, batches)

    def _loss_scale(self, loss: Any) -> float:
        return watched_calls.scale_of(loss)

    def _number(self, value: Any) -> float:
        return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)

    def _script_lr(self) -> float:
        return float(self.optimizers[0].param_groups[0]["lr"])

    def _averages_in_place(self) -> AbstractContextManager[None]:
        if self._averages is None:
            raise TrainingError("no weights are averaged; attach(..., ema_decay=0.999) averages them")
        return self._averages.in_place()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        modules = [module for model in self.models for module in model.modules() if module.training]
        for model in self.models:
            model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in modules:
                module.training = True
