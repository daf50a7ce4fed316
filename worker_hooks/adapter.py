"""What a framework does in its own way: its parameters, gradients and their sum, arrays, optimizers, checkpoints.

torch/ and mxnet/ implement these interfaces. An adapter also makes its optimizers call
`Training.before_step` and `Training.after_step` around every step.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.gradient_exchange import GradientExchange
from worker_hooks.exchange.weight_samples import WeightSamples
from worker_hooks.loading.data_source import DataSetSource, DataSource
from worker_hooks.memory.memory_ceiling import MemoryCeiling, WorkerMemory
from worker_hooks.saved.checkpoint import Position

if TYPE_CHECKING:
    from worker_hooks.session import Session
    from worker_hooks.settings import Settings
    from worker_hooks.training import Training


class ModelParameters(ABC):
    """The parameters of one training.

    Attributes:
        code: a number that is equal on two workers exactly if `look_up` found the same on both.
        samples: of the weights, which show whether two workers differ.
        tolerance: how much these may differ between workers, whose processors may round each step differently.
    """

    code: int = 0
    samples: WeightSamples[Any]
    tolerance: float

    @abstractmethod
    def look_up(self) -> list[str]:
        """Find what is trained now. Returns the names of parameters that were not there before.

        Raises TrainingError where nothing can be trained, or a layer cannot be distributed.
        """

    @abstractmethod
    def changed(self) -> bool:
        """Whether the script has changed what is trained since `look_up`: parameters, types, shapes, devices.

        It is called in every iteration, so it is quick.
        """

    @abstractmethod
    def described(self) -> dict[str, str]:
        """Shape and type of every trained parameter, in order, and its kind of device if that is not the CPU.

        Data planes take another way for each kind of device, so workers of several kinds would wait for each other.
        """

    @property
    @abstractmethod
    def smallest_share(self) -> int:
        """Samples that a worker needs if it has any: layers that compare the samples of a batch need two."""

    @abstractmethod
    def pack(self, names: Sequence[str]) -> bytes:
        """The values of these parameters."""

    @abstractmethod
    def unpack(self, values: bytes) -> None:
        """Give parameters the values that `pack` made."""


class ModelState(ABC):
    """The state of models and optimizers: for checkpoints, for the other workers, and for workers that enter."""

    def pack(self, position: Position) -> bytes:
        """Model, optimizer and position, bit for bit."""
        packed = io.BytesIO()
        self.write(position, packed)
        return packed.getvalue()

    @abstractmethod
    def write(self, position: Position, out: BinaryIO) -> None:
        """Write what `pack` returns, from its beginning to its end. `out` cannot go back."""

    @abstractmethod
    def restore(self, packed: BinaryIO) -> Position:
        """Put what `write` wrote into model and optimizer. Raises CheckpointError when it does not fit."""

    @abstractmethod
    def send(self, position: Position, out: BinaryIO) -> None:
        """Write model, optimizer and position for a worker that enters. `out` cannot go back."""

    @abstractmethod
    def receive(self, state: BinaryIO) -> Position:
        """Put what `send` wrote into model and optimizer. `state` cannot go back, and goes on behind it.

        Raises CheckpointError when it does not fit, and PeerLostError when it breaks off. Nothing is changed then.
        """

    @abstractmethod
    def storable(self, state: Any, where: str) -> Any:
        """This state of a registered object as `pack` can hold it. `where`: its name in an error.

        Raises CheckpointError if there is no such form.
        """

    @abstractmethod
    def hyperparameters(self) -> Any:
        """What schedulers change in the optimizer, such as its learning rate."""

    @abstractmethod
    def set_hyperparameters(self, saved: Any) -> None:
        """Put back what `hyperparameters` returned."""


class Adapter(ABC):
    """The models and the optimizers of one training in a framework.

    Attributes:
        parameters: what is trained.
        state: of models and optimizers, in bytes.
    """

    models: Sequence[Any]
    optimizers: Sequence[Any]
    parameters: ModelParameters
    state: ModelState
    framework: ClassVar[str]
    framework_version: ClassVar[str]
    checkpoint_suffix: ClassVar[str]
    survives_lack_of_memory: ClassVar[bool] = False  # an allocation that fails is an error like others
    computes_for_several: ClassVar[bool] = False  # workers in one process

    @abstractmethod
    def attached(self, training: Training) -> None:
        """`training` is complete, and begins: optimizers and what the script calls belong to it from now on."""

    @abstractmethod
    def detach(self) -> None:
        """Leave models and optimizers alone from now on."""

    @abstractmethod
    def lay_out(self, source: DataSource) -> list[str]:
        """Look up which parameters are trained now. Returns the names of those that were not there before.

        `source` of the data: where shapes follow from the first batch.
        """

    def refused_change(self, before_forward: bool) -> str:
        """Why the parameters must not change now; empty: they may.

        `before_forward`: the script has not computed with them since the batch was handed out.
        """
        return ""

    @abstractmethod
    def setting(self) -> str:
        """Anything beside parameters that must be equal on all workers."""

    @abstractmethod
    def make_exchange(self, prefix: str, session: Session) -> GradientExchange:
        """The exchange of the parameters that `lay_out` found, with its keys declared under `prefix`."""

    @abstractmethod
    def make_memory(self, ceiling: MemoryCeiling, tell: Callable[[str], None], training: Training) -> WorkerMemory:
        """What keeps the batches of the models to `ceiling` from now on. `tell` gets sentences for people."""

    def squared_norms(self, whole: float) -> Sequence[float]:
        """|g_i|^2 of every worker of this process, before the sum. `whole`: that of the gradient of the process."""
        return (whole,)

    @abstractmethod
    def copy_state(self, position: Callable[[], Position], registered: Iterable[Any]) -> Callable[[], None]:
        """A copy of models and optimizers in memory, and of models among the `registered` objects.

        The function returned puts it back: all but what schedulers change in the optimizers, which stays as it is.
        """

    def source_of(self, data: Any, settings: Settings, seed: int = 0, like: DataSource | None = None) -> DataSource:
        """Where batches of `data`, which the script passes, come from.

        Args:
            seed: of their order.
            like: the source of the training, whose way to make batches the new source takes over.
        """
        return DataSetSource(data, self.fetch, settings.config.prefetch)

    @abstractmethod
    def fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        """These samples as one batch. For no indices: the first two samples, which will count for nothing."""

    @abstractmethod
    def propagate(self, loss: Any) -> None:
        """Run the backward pass. Where the batch has 0 units, the loss may be NaN, or no loss at all."""

    def refused(self, loss: Any) -> str:
        """Why the loss is not what the script says that it is; empty: nothing is known against it."""
        return ""

    def has_unseen(self) -> bool:
        """Whether parameters that the exchange does not know have gradients of the batch at hand."""
        return False

    def has_mixed_gradients(self) -> bool:
        """Whether a backward outside run.backward() has added to gradients that are in a sum already."""
        return False

    def drop_summed_gradients(self) -> bool:
        """Gradients that are in a sum already count for nothing on this worker. Returns whether there are some."""
        return False

    def batch_of(self, loss: Any, batches: Sequence[Any]) -> int | None:
        """The number of the batch that `loss` was computed from; none: the framework does not show it."""
        return None

    def look_up_schedules(self) -> None:  # noqa: B027  # some have no need to
        """A loop over batches has ended: what the script has for its learning rate still exists."""

    def missed_ends(self, passes: int) -> Iterable[str]:
        """A sentence for each schedule of the learning rate that is far from its end (schedules.py) after `passes`."""
        return ()

    def prepare(self, data: Any, samples: int) -> None:  # noqa: B027  # most do nothing
        """The script is about to get this batch."""

    def begin_at(self, reference_batch: int) -> None:  # noqa: B027  # most do nothing
        """Training begins, or goes on from a state that was saved, with this reference batch."""

    def batch_begun(self) -> None:  # noqa: B027  # most do nothing
        """The script is about to get a batch, and has done all that it does with the one before."""

    def batch_finished(self) -> None:  # noqa: B027  # most do nothing
        """The script asks for the next batch, or has left the loop."""

    def stepped(self, optimizer: int, batch_size: float, steps: int) -> None:  # noqa: B027  # most do nothing
        """Optimizer number `optimizer` has taken its step, for a sum that is worth `batch_size`: number `steps`."""

    @abstractmethod
    def loss_scale(self, loss: Any) -> float:
        """The factor of a GradScaler that is in `loss`; 1 without one."""

    @abstractmethod
    def number(self, value: Any) -> float:
        """The value of one of the framework's scalars, or of a plain number."""

    @abstractmethod
    def script_lr(self) -> float:
        """The learning rate as the script has set it, without our factor."""

    def averages_in_place(self) -> AbstractContextManager[None]:
        """Within it the models have averages in place of their weights. Raises TrainingError where there are none."""
        raise TrainingError(
            f"{self.framework} has no averages of the weights here; torch has, so leave averaged=True and "
            "run.averaged() out"
        )

    @abstractmethod
    def inference(self) -> AbstractContextManager[None]:
        """Within it the model computes as for evaluation, without gradients."""

    # -- what scripts call -------------------------------------------------------------------------------------------

    @abstractmethod
    def clip_norm(self, max_norm: float, norm_type: float) -> Any:
        """`run.clip_grad_norm_`, of the global gradient."""

    @abstractmethod
    def clip_value(self, clip_value: float) -> None:
        """`run.clip_grad_value_`, of the global gradient."""

    def gather(self, tensor: Any, training: Training) -> Any:
        """`run.gather`. Raises TrainingError where the framework has none."""
        raise TrainingError(
            f"run.gather() is not possible in {self.framework}; what is trained is the mean over workers of the losses "
            "over the pairs of each worker's own samples, or use torch"
        )

    def loader(self, training: Training) -> Any:
        """`run.loader`. Raises TrainingError where the framework has none."""
        raise TrainingError(
            f"run.loader is not possible in {self.framework}: loop over run.batches(), and call run.backward(loss)"
        )

    def batch_sampler(self, training: Training) -> Any:
        """`run.batch_sampler`. Raises TrainingError where the framework has none."""
        raise TrainingError(
            f"run.batch_sampler() is not possible in {self.framework}: it is for a DataLoader of torch; loop over "
            "run.batches()"
        )
