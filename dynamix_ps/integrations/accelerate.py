"""accelerate: its `Accelerator`, with batches and gradients of workers that differ.

    from dynamix_ps.integrations.accelerate import Accelerator       # in place of `from accelerate import Accelerator`
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

The loop stays: `for batch in loader`, `accelerator.backward(loss)`, `optimizer.step()`. The first prepared loader that
is looped over while the model is in training mode has the data of the training (passes.py); its first batch attaches.
Other loops, after `model.eval()`, are accelerate's own: each worker has a part, and `gather_for_metrics` joins them.

For accelerate the workers are processes without a connection. Whatever it asks of all of them is overridden here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import accelerate
import numpy as np
import torch
from accelerate.data_loader import DataLoaderStateMixin, SeedableRandomSampler, get_sampler
from accelerate.state import GradientState, PartialState
from accelerate.utils import DistributedType, recursively_apply, send_to_device
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from dynamix_ps.errors import TrainingError
from dynamix_ps.integrations.passes import Passes
from dynamix_ps.integrations.workers import WorkerGroup
from dynamix_ps.torch import Run, attach


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` for the workers that `dynamix launch` has started; the arguments are the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Joins the other workers.

        Raises TrainingError where accelerate's own launcher has started several processes, and for arguments that
        batch sizes of our own rule out.
        """
        self._workers = WorkerGroup()
        state = PartialState(cpu=bool(kwargs.get("cpu")))
        if state.distributed_type != DistributedType.NO:
            raise TrainingError(
                f"accelerate has started its own processes ({state.distributed_type}); start the script by "
                "`dynamix launch -c cluster.yaml -- python ...` alone"
            )
        state.process_index = state.local_process_index = self._workers.rank
        state.num_processes = self._workers.size
        super().__init__(*args, **kwargs)
        if self.split_batches or self.dispatch_batches:
            raise TrainingError(
                "DataLoaderConfiguration(split_batches=..., dispatch_batches=...): every worker reads its own part "
                "here, whose size the plan says; leave both out"
            )
        if self._workers.settings.resume is not None:
            raise TrainingError(
                "dynamix launch --resume does not know where the script is; resume by accelerator.load_state(), or "
                "trainer.train(resume_from_checkpoint=...)"
            )
        self._training: PreparedLoader | None = None  # that has the data of the training
        self._place = _Place()
        self.register_for_checkpointing(self._place)
        self.weight: Any = None  # of the losses to come, where `backward` gets none

    @property
    def run(self) -> Run | None:
        """The training; none before its first batch."""
        return self._workers.run

    # -- what is prepared ---------------------------------------------------------------------------------------------

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data_loader, PreparedLoader):
            return data_loader
        shard = partial(super().prepare_data_loader, data_loader, *args, **kwargs)
        prepared = PreparedLoader(self, data_loader, shard)
        self._dataloaders.append(prepared)
        return prepared

    def is_other(self, loader: PreparedLoader) -> bool:
        """Whether another loader than this one has the data of the training."""
        return self._training is not None and self._training is not loader

    def takes(self, loader: PreparedLoader) -> bool:
        """Whether a loop over `loader`, which begins now, is one of the training."""
        if not self._optimizers or not any(model.training for model in self._models):
            return False
        if self._training is None:
            self._training = loader
            self._place.belongs_to(loader.passes)
        if self.is_other(loader):
            raise TrainingError(
                "a loop over a second loader while the model is in training mode; a training has one loader, and an "
                "evaluation begins with model.eval()"
            )
        return True

    def attach(self, loader: DataLoader[Any]) -> Run:
        """The training of the prepared models and optimizers with this data."""
        optimizers = [one.optimizer for one in self._optimizers]
        models = [self.unwrap_model(model) for model in self._models]
        return self._workers.attached(attach(models, optimizers, loader))

    def listen(self, listener: Callable[[dict[str, Any]], object]) -> None:
        """`run.listen(listener)`, for loggers."""
        self._workers.listen(listener)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """`load_state` has brought the data of the training to its place already; nothing is skipped there."""
        if not isinstance(dataloader, PreparedLoader):
            return super().skip_first_batches(dataloader, num_batches)
        if num_batches and not self._place.is_loaded:
            raise TrainingError(
                "skip_first_batches() of the training loader without a state: call accelerator.load_state() before, "
                "which brings the data to its place"
            )
        return dataloader

    # -- gradients ----------------------------------------------------------------------------------------------------

    def backward(
        self,
        loss: Any,
        *,
        correct: Any = None,
        weight: Any = None,
        reduction: Literal["mean", "sum"] = "mean",
        **kwargs: Any,
    ) -> None:
        """In place of `loss.backward()`. `correct`, `weight` and `reduction` are those of `run.backward`."""
        run = self._workers.run
        if run is None:
            raise TrainingError(
                "accelerator.backward() outside of a loop over the prepared training loader; pass model, optimizer and "
                "DataLoader to accelerator.prepare(), and call model.train() before the loop"
            )
        if kwargs:
            raise TrainingError(
                f"accelerator.backward(loss, {', '.join(kwargs)}=...): run.backward() has none of these"
            )
        weight = self.weight if weight is None else weight
        if not self.sync_gradients and weight is None:
            super().backward(loss)  # the sum comes with a later batch
            return
        loss = loss / self.gradient_accumulation_steps
        run.backward(loss if self.scaler is None else self.scaler.scale(loss), correct, weight, reduction)

    def free_memory(self, *objects: Any) -> Any:
        """Ends the training too."""
        if self._workers.run is not None:
            run, self._workers.run, self._training = self._workers.run, None, None
            self._place.over()
            run.close()
        return super().free_memory(*objects)

    # -- all workers together -----------------------------------------------------------------------------------------

    def wait_for_everyone(self) -> None:
        self._workers.meet("accelerator.wait_for_everyone()")

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Worker 0 does what is inside first, then all others."""
        if not self.is_main_process:
            self.wait_for_everyone()
        yield
        if self.is_main_process:
            self.wait_for_everyone()

    local_main_process_first = main_process_first  # each worker may be on a machine of its own

    def gather(self, tensor: Any) -> Any:
        """Tensors of all workers, joined in the order of ranks along the first dimension, whose size may differ."""

        def joined(one: torch.Tensor) -> torch.Tensor:
            return torch.cat(self._workers.tensors(one[None] if one.ndim == 0 else one, "accelerator.gather()"))

        return recursively_apply(joined, tensor, error_on_other_type=True)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        if self.num_processes > 1 and (use_gather_object or not _has_only_tensors(input_data)):
            raise TrainingError(
                "gather_for_metrics() of other things than tensors: only tensors travel between workers"
            )
        return super().gather_for_metrics(input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        def reduced(one: torch.Tensor) -> torch.Tensor:
            return one if reduction == "none" else self._workers.reduced(one, reduction, "accelerator.reduce()")

        return recursively_apply(reduced, tensor, error_on_other_type=True)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        def padded(one: torch.Tensor) -> torch.Tensor:
            if dim >= one.ndim:
                return one
            longest = int(
                self._workers.each(np.array([float(one.shape[dim])]), "accelerator.pad_across_processes()").max()
            )
            sides = [0, 0] * (one.ndim - dim)
            sides[-2 if pad_first else -1] = longest - one.shape[dim]
            return torch.nn.functional.pad(one, sides, value=pad_index)

        return recursively_apply(padded, tensor, error_on_other_type=True)


def _has_only_tensors(data: Any) -> bool:
    try:
        recursively_apply(lambda tensor: tensor, data, error_on_other_type=True)
    except TypeError:
        return False
    return True


class _Place:
    """The place in the data of the training, as accelerate saves and loads it with other objects."""

    def __init__(self) -> None:
        self._passes: Passes | None = None
        self._loaded: dict[str, Any] | None = None

    @property
    def is_loaded(self) -> bool:
        return bool(self._loaded)

    def belongs_to(self, passes: Passes) -> None:
        """The training has this data."""
        self._passes = passes
        if self._loaded:
            passes.load_state_dict(self._loaded)

    def over(self) -> None:
        """The training has ended."""
        self._passes = self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._passes is None else self._passes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._passes is not None:
            raise TrainingError("accelerator.load_state() after the first batch; call it before the loop over the data")
        self._loaded = state


class PreparedLoader(DataLoaderStateMixin):
    """A DataLoader that `Accelerator.prepare` returns: passes over the data while the model trains."""

    def __init__(self, accelerator: Accelerator, loader: DataLoader[Any], shard: Callable[[], Any]) -> None:
        """`shard` makes what accelerate does of `loader`, for evaluations. It changes the generator of its sampler."""
        self._accelerator, self._make_shard = accelerator, shard
        self._made: Any = None  # by it, when first needed
        self._evaluations = 0
        self.passes = Passes(loader, accelerator.num_processes, accelerator.attach)
        self.loader, self.dataset, self.gradient_state = loader, loader.dataset, GradientState()

    def __iter__(self) -> Iterator[Any]:
        accelerator = self._accelerator
        if not accelerator.takes(self):
            shard = self._shard
            if accelerator.num_processes > 1:
                self._draw_alike()
            yield from shard
            return
        self.begin()
        try:
            for batch in self.passes:
                self.end_of_dataloader = self.passes.is_last
                yield send_to_device(batch, accelerator.device) if accelerator.device_placement else batch
        finally:
            self.end()

    @property
    def _shard(self) -> Any:
        """This worker's part of the data, for evaluations."""
        if self._made is None:
            if isinstance(self.dataset, IterableDataset) and self._accelerator.num_processes > 1:
                raise TrainingError(
                    f"an evaluation over a stream ({type(self.dataset).__name__}) on several workers; prepare a loader "
                    "of a data set with len(d) and d[i], of which each takes a part"
                )
            self._made = self._make_shard()
        return self._made

    def _draw_alike(self) -> None:
        """Evaluations take their parts of one order, so all workers must draw the same one."""
        sampler = get_sampler(self.loader)
        self._evaluations += 1
        if isinstance(sampler, SeedableRandomSampler):
            sampler.initial_seed = 0  # its epoch is added
        elif isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(self._evaluations)
        elif not isinstance(sampler, SequentialSampler):
            raise TrainingError(
                f"an evaluation in an order that {type(sampler or self.loader.batch_sampler).__name__} decides, which "
                "may differ between workers; leave it out, or give it a `generator` that it draws from"
            )

    def __len__(self) -> int:
        evaluates = self._accelerator.is_other(self) or (self._made is not None and self.passes.run is None)
        return len(self._shard if evaluates else self.passes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.loader, name)
