"""transformers: its `Trainer`, with batches and gradients of workers that differ.

    from dynamix_ps.integrations.transformers import Trainer         # in place of `from transformers import Trainer`

The Trainer uses the Accelerator of accelerate.py. Where a model's loss is a mean over tokens, the update is the mean
over the tokens of all workers. With `num_train_epochs` the number of steps follows the batch sizes: passes over the
data end where they end, and the learning-rate schedule goes by samples. With `max_steps` both go by steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.optim.lr_scheduler import LambdaLR
from transformers import trainer as original

from dynamix_ps.errors import TrainingError
from dynamix_ps.integrations.accelerate import Accelerator, PreparedLoader

_OF_MACHINE = ("_runtime", "_per_second", "_time")  # values of an evaluation that are not of the model
_PLACE = "dynamix.pt"  # in a checkpoint of the Trainer: the place in the data, and the plan

_OVERRIDDEN = (
    "create_accelerator_and_postprocess",
    "set_initial_training_values",
    "_init_training_state",
    "_run_epoch",
    "get_batch_samples",
)
if not all(hasattr(transformers.Trainer, name) for name in _OVERRIDDEN):
    raise ImportError(
        f"transformers {transformers.__version__} has another Trainer than this module knows; "
        "pip install 'dynamix-ps[transformers]'"
    )


class Trainer(transformers.Trainer):
    """`transformers.Trainer` for the workers that `dynamix launch` has started; the arguments are the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Joins the other workers. Raises TrainingError for arguments that batch sizes of our own rule out."""
        super().__init__(*args, **kwargs)
        check_arguments(self.args)
        self.args.average_tokens_across_devices = False  # the sum of the gradients does it
        self._loader: PreparedLoader | None = None  # of the training
        self.add_callback(_PassesDecide(self))

    def create_accelerator_and_postprocess(self) -> None:
        before, original.Accelerator = original.Accelerator, Accelerator
        try:
            super().create_accelerator_and_postprocess()
        finally:
            original.Accelerator = before

    @property
    def by_epochs(self) -> bool:
        """Whether training ends after passes over the data, and not after steps."""
        return bool(self.args.max_steps <= 0)

    @property
    def _losses_are_of_items(self) -> bool:
        """Whether losses are means over the items of a batch, such as tokens, as far as the Trainer knows."""
        told = self.loss_is_scaled_for_ga  # by a class with a compute_loss of its own
        return bool(self.model_accepts_loss_kwargs or self.compute_loss_func) if told is None else bool(told)

    def get_train_dataloader(self) -> PreparedLoader:
        loader = super().get_train_dataloader()
        if not isinstance(loader, PreparedLoader):
            raise TrainingError(f"get_train_dataloader() returned a {type(loader).__name__}; pass it through super()")
        loader.passes.epochs = int(self.args.num_train_epochs) if self.by_epochs else None
        self._loader = loader
        return loader

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
        epochs, *others = super().set_initial_training_values(*args, **kwargs)
        return (epochs if self.by_epochs else sys.maxsize, *others)  # as many passes as the steps need

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        begin = super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial)
        if checkpoint is None:
            return begin  # type: ignore[no-any-return]
        file = Path(checkpoint) / _PLACE
        if not file.exists():
            raise TrainingError(f"{checkpoint} has no {_PLACE}: it is not a checkpoint of this Trainer")
        state = torch.load(file, weights_only=True)
        assert self._loader is not None
        self._loader.passes.load_state_dict(state)
        return state["position"]["cursor"]["epoch"], 0

    def _run_epoch(self, *, model: torch.nn.Module, **kwargs: Any) -> Any:
        """A pass has as many steps as it has; the callback below ends it."""
        model.train()  # the Trainer does it behind the first batch, which is one of the training
        return super()._run_epoch(model=model, **{**kwargs, "num_update_steps_per_epoch": sys.maxsize})

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.accelerator.weight = items if self._losses_are_of_items else None
        return batches, items

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        run = self.accelerator.run
        if run is None:
            return super().evaluate(*args, **kwargs)
        with run.paused():
            values = super().evaluate(*args, **kwargs)
        prefix = f"{kwargs.get('metric_key_prefix', 'eval')}_"
        run.record(
            {
                name.removeprefix(prefix): value
                for name, value in values.items()
                if name.startswith(prefix) and not name.endswith(_OF_MACHINE)
            }
        )
        return values

    def train(self, *args: Any, **kwargs: Any) -> Any:
        output = super().train(*args, **kwargs)
        self.accelerator.free_memory()
        return output


class _PassesDecide(transformers.TrainerCallback):
    """The Trainer counts steps; here the passes over the data say when they end and how far training is."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._steps = 1  # of the training, as the schedule knows it

    @property
    def _loader(self) -> PreparedLoader:
        assert self._trainer._loader is not None
        return self._trainer._loader

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps = state.max_steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer.by_epochs:
            state.max_steps = state.global_step + self._loader.passes.batches_left

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The schedule's next step is the one at which one process would be after as many samples."""
        scheduler, run = kwargs["lr_scheduler"], self._trainer.accelerator.run
        if self._trainer.by_epochs and isinstance(scheduler, LambdaLR) and run is not None:
            scheduler.last_epoch = round(run.progress * self._steps) - 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        state.epoch = self._loader.passes.done
        control.should_epoch_stop |= self._loader.passes.is_last
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._loader.passes.end_pass()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(self._loader.passes.state_dict(), folder / _PLACE)


def check_arguments(args: transformers.TrainingArguments) -> None:
    """Raises TrainingError, which says what to do instead, for what batch sizes of our own rule out."""
    if args.n_gpu > 1:
        raise TrainingError(
            f"the Trainer found {args.n_gpu} GPUs, and a worker trains on one; start a worker per GPU, and let each "
            "see but its own (CUDA_VISIBLE_DEVICES)"
        )
    if args.max_steps <= 0 and not float(args.num_train_epochs).is_integer():
        raise TrainingError(
            f"TrainingArguments: num_train_epochs={args.num_train_epochs}: the number of steps in a part of a pass "
            "changes with the batch sizes; say a whole number, or max_steps"
        )
    if args.gradient_accumulation_steps > 1:
        what, instead = "gradient_accumulation_steps", "batches are as large as the plan says"
    elif args.auto_find_batch_size:
        what, instead = "auto_find_batch_size", "the plan finds the sizes; give workers with less memory a `max`"
    elif args.train_sampling_strategy == "batch_rebalance":
        what, instead = "train_sampling_strategy='batch_rebalance'", "each worker's part is the plan's to say"
    elif args.deepspeed or args.fsdp:
        what, instead = "deepspeed and fsdp", "every worker has the whole model"
    else:
        return
    raise TrainingError(f"TrainingArguments: {what} has no place here, because {instead}; leave it out")
