"""Lightning: `Trainer(strategy=DynamixStrategy(), ...)`. Module, loaders and callbacks stay as they are.

    from dynamix_ps.integrations.lightning import DynamixStrategy
    trainer = Trainer(strategy=DynamixStrategy(), max_epochs=3)

The strategy puts passes.py in place of the training DataLoader, attaches when training starts, and sends every backward
pass through `run.backward`. Every worker evaluates on all data of the validation loaders, so decisions by what they
measure are the same on all workers.

`training_step` may return `{"loss": ..., "correct": ..., "weight": ..., "reduction": ...}`, the arguments of
`run.backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader
from torchmetrics import Metric

from dynamix_ps.errors import TrainingError
from dynamix_ps.integrations.passes import Passes
from dynamix_ps.integrations.workers import WorkerGroup
from dynamix_ps.run_record.evaluations import AVERAGED
from dynamix_ps.torch import Run, attach

_TOLD = ("correct", "weight", "reduction")  # what `training_step` may return beside the loss


class DynamixStrategy(ParallelStrategy):
    """One of the workers that `dynamix launch` has started. With plain `python` it is ordinary training."""

    strategy_name = "dynamix"

    def __init__(self, **settings: Any) -> None:
        """Joins the other workers. `settings`: those of every strategy of Lightning, such as `precision_plugin`."""
        super().__init__(**settings)
        self._workers = WorkerGroup()
        self._passes: Passes | None = None
        self._told: dict[str, Any] = {}
        self._adds = False  # this batch's gradients wait for those of further batches
        self._pause: AbstractContextManager[None] | None = None
        self._metrics_before: dict[str, torch.Tensor] = {}  # this validation
        self._has_failed = False

    # -- this worker among the others ---------------------------------------------------------------------------------

    @property
    def global_rank(self) -> int:
        return self._workers.rank

    @property
    def world_size(self) -> int:
        return self._workers.size

    @property
    def local_rank(self) -> int:
        return 0  # every worker is alone on the devices that it sees

    @property
    def node_rank(self) -> int:
        return self._workers.rank

    @property
    def is_distributed(self) -> bool:
        """Whether metrics with `sync_dist` are of all workers."""
        return self._workers.size > 1

    def setup_environment(self) -> None:
        super().setup_environment()
        # A DistributedSampler would give each worker a part of the data a second time, and repeat samples.
        self._trainer._accelerator_connector.use_distributed_sampler = False

    def set_world_ranks(self) -> None:
        rank_zero_only.rank = fabric_rank_zero_only.rank = self._workers.rank

    @property
    def root_device(self) -> torch.device:
        devices: list[torch.device] = self.parallel_devices or [torch.device("cpu")]
        if len(devices) > 1:
            raise TrainingError(
                f"Trainer found {len(devices)} devices, and a worker trains on one; say Trainer(devices=1) or "
                "devices=[number], and start a worker per device"
            )
        return devices[0]

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        self._share_metrics()

    # -- training -----------------------------------------------------------------------------------------------------

    def process_dataloader(self, dataloader: object) -> object:
        """The training loader in passes; others as they are."""
        trainer = self._trainer
        if not trainer.training:
            return dataloader
        if self._passes is not None:
            raise TrainingError(
                "a second loader for training: give trainer.fit() one train_dataloader, and do not reload it "
                "(reload_dataloaders_every_n_epochs)"
            )
        if not isinstance(dataloader, DataLoader):
            raise TrainingError(
                f"the train_dataloader is a {type(dataloader).__name__}; expected a torch.utils.data.DataLoader"
            )
        self._passes = Passes(dataloader, self._workers.size, self._attach)
        return self._passes

    @property
    def _trainer(self) -> Trainer:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    def on_train_start(self) -> None:
        trainer = self._trainer
        if (interval_s := trainer._val_check_time_interval) is not None:
            raise TrainingError(
                f"Trainer(val_check_interval=...) of {interval_s:g} s: by their own clocks the workers would validate "
                "after different batches; say after how many batches, as an integer"
            )
        if trainer.val_check_interval == 1.0:
            trainer.val_check_batch = float("inf")  # after the last batch, whatever its number is
        elif isinstance(trainer.val_check_interval, float):
            raise TrainingError(
                f"Trainer(val_check_interval={trainer.val_check_interval}): the number of batches in a pass changes "
                "with their sizes; say after how many batches, as an integer"
            )
        if isinstance(trainer.limit_train_batches, float) and trainer.limit_train_batches < 1:
            raise TrainingError(
                f"Trainer(limit_train_batches={trainer.limit_train_batches}): the number of batches in a pass changes "
                "with their sizes; give it a loader of fewer samples"
            )
        assert self._passes is not None
        if trainer.max_epochs and trainer.max_epochs > 0:
            self._passes.epochs = trainer.max_epochs
        self._passes.attach()

    def _attach(self, loader: DataLoader[Any]) -> Run:
        if self._workers.settings.resume is not None:
            raise TrainingError(
                "dynamix launch --resume does not know where Lightning is; resume by trainer.fit(..., ckpt_path=...)"
            )
        assert self.lightning_module is not None
        if is_overridden("backward", self.lightning_module):
            raise TrainingError(
                f"{type(self.lightning_module).__name__}.backward() would not be called, because run.backward() takes "
                "its place; remove it"
            )
        return self._workers.attached(attach(self.lightning_module, self.optimizers, loader))

    def listen(self, listener: Callable[[dict[str, Any]], object]) -> None:
        """`run.listen(listener)`, for loggers."""
        self._workers.listen(listener)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Tell Lightning which batch is the last of its pass: by their number it cannot know."""
        loop, passes = self._trainer.fit_loop, self._passes
        assert passes is not None and loop._data_fetcher is not None
        is_last = passes.is_last or batch_idx + 1 == self._limit
        loop._data_fetcher.done = loop.epoch_loop.batch_progress.is_last_batch = is_last
        loop.max_batches = batch_idx + 1 if is_last else max(len(passes), batch_idx + 2)

    @property
    def _limit(self) -> int | None:
        """Batches of a pass that `limit_train_batches` or `fast_dev_run` leave."""
        limit = self._trainer.limit_train_batches
        return limit if isinstance(limit, int) else None

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._told = {}  # of the batch before
        output = super().training_step(*args, **kwargs)
        self._told = {name: output[name] for name in _TOLD if name in output} if isinstance(output, Mapping) else {}
        return output

    @contextmanager
    def block_backward_sync(self) -> Generator[None]:
        """`accumulate_grad_batches`: the gradients of this batch are in the sum of a later one."""
        self._adds = True
        try:
            yield
        finally:
            self._adds = False

    def backward(
        self, closure_loss: torch.Tensor, optimizer: torch.optim.Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        run, told = self._workers.run, self._told | kwargs
        assert run is not None and self.lightning_module is not None
        if args or not told.keys() <= set(_TOLD):
            raise TrainingError(
                f"manual_backward(loss, ...) got {[*args, *kwargs]}, expected nothing but {', '.join(_TOLD)}, the "
                "arguments of run.backward()"
            )
        if self._adds and "weight" not in told:
            added: torch.Tensor = super().backward(closure_loss, optimizer)
            return added
        self.pre_backward(closure_loss)
        loss: torch.Tensor = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        run.backward(loss, **told)
        loss = self.precision_plugin.post_backward(loss, self.lightning_module)
        self.post_backward(loss)
        return loss

    def on_validation_start(self) -> None:
        if self._workers.run is not None and self._passes is not None:
            self._passes.end_pass()
            self._metrics_before = dict(self._trainer.callback_metrics)
            self._pause = self._workers.run.paused()
            self._pause.__enter__()

    def on_validation_end(self) -> None:
        if self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None
            self._record()

    def _record(self) -> None:
        """What this validation has logged: `val_accuracy` as `accuracy`, or `averaged_accuracy` under a callback that
        has put averages in place of the weights."""
        run, before = self._workers.run, self._metrics_before
        assert run is not None
        logged = {
            name: value for name, value in self._trainer.callback_metrics.items() if value is not before.get(name)
        }
        label = AVERAGED if any(isinstance(one, WeightAveraging) for one in self._trainer.callbacks) else ""
        run.record({label + name.replace("/", "_").removeprefix("val_"): float(one) for name, one in logged.items()})

    def on_train_end(self) -> None:
        if self._passes is not None:
            self._passes.end_pass()

    def on_exception(self, exception: BaseException) -> None:
        self._has_failed = True

    def teardown(self) -> None:
        run, self._workers.run, self._passes = self._workers.run, None, None
        if run is not None and not self._has_failed:
            run.close()
        super().teardown()

    # -- what callbacks and `self.log(..., sync_dist=True)` ask of all workers -----------------------------------------

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        how = str(reduce_op or "sum").rpartition(".")[2].lower()  # a text, or a ReduceOp
        return self._workers.reduced(tensor, how, "a metric of all workers")

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        if sync_grads:
            raise TrainingError("all_gather(..., sync_grads=True): gradients do not flow between workers; leave it out")
        return torch.stack(self._workers.tensors(tensor, "all_gather()"))

    def _share_metrics(self) -> None:
        """Metrics of torchmetrics are over all workers' batches while training, and each worker's own in evaluations,
        where each has all data. By themselves they would ask torch.distributed, whatever it is used for."""
        assert self.lightning_module is not None
        for metric in self.lightning_module.modules():
            if isinstance(metric, Metric):
                metric.distributed_available_fn = lambda: self._workers.size > 1 and self._trainer.training
                metric.dist_sync_fn = lambda tensor, group=None: self._workers.tensors(
                    tensor, "a metric of all workers"
                )

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return self._workers.from_rank_0(obj, "trainer.strategy.broadcast()")

    def barrier(self, name: str | None = None) -> None:
        self._workers.meet(f"trainer.strategy.barrier({name!r})")
