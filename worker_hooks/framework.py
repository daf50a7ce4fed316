"""What a framework adds to a training: its gradients and their sum, its arrays, its optimizer, its checkpoints.

A hook for another framework implements these methods (torch/run.py and mxnet/run.py do). It also makes its optimizer
call `Training._before_step` and `_after_step` around every step.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from worker_hooks.checkpoint import Position
from worker_hooks.exchange import GradientExchange
from worker_hooks.memory_ceiling import MemoryCeiling
from worker_hooks.worker_memory import WorkerMemory


class Framework(ABC):
    """One model of a framework, its optimizer and its data."""

    framework: ClassVar[str]
    framework_version: ClassVar[str]
    checkpoint_suffix: ClassVar[str]
    survives_lack_of_memory: ClassVar[bool] = False  # an allocation that fails is an error like others
    computes_for_several: ClassVar[bool] = False  # workers in one process

    @abstractmethod
    def _lay_out(self) -> list[str]:
        """Look up which parameters are trained now. Returns the names of those that were never trained before."""

    @abstractmethod
    def _parameters_changed(self) -> bool:
        """Whether the script has changed what is trained since `_lay_out`: parameters, types, shapes, devices."""

    @abstractmethod
    def _layout_code(self) -> int:
        """A number that is equal on two workers exactly if `_lay_out` found the same on both."""

    @abstractmethod
    def _described_parameters(self) -> dict[str, str]:
        """Shape and type of every trained parameter, in order."""

    @abstractmethod
    def _setting(self) -> str:
        """Anything else that must be equal on all workers."""

    @abstractmethod
    def _sample_weights(self, number: int) -> tuple[float, float]:
        """Direction and size of a few weights; successive numbers go round all of them within 50."""

    @abstractmethod
    def _all_weights(self) -> dict[str, tuple[float, float]]:
        """Direction and size of every parameter by itself."""

    @abstractmethod
    def _weights_tolerance(self) -> float:
        """How much they may differ between workers, whose processors may round differently."""

    @abstractmethod
    def _pack_parameters(self, names: list[str]) -> bytes:
        """The values of these parameters."""

    @abstractmethod
    def _unpack_parameters(self, names: list[str], values: bytes) -> None:
        """Give these parameters the values that `_pack_parameters` made."""

    @abstractmethod
    def _make_exchange(self, prefix: str) -> GradientExchange:
        """The exchange of the parameters that `_lay_out` found, with its keys declared under `prefix`."""

    @abstractmethod
    def _detach(self) -> None:
        """Leave model and optimizer alone from now on."""

    def _smallest_share(self) -> int:
        """Samples that a worker needs if it has any: layers that compare the samples of a batch need two."""
        return 1

    @abstractmethod
    def _make_memory(self, ceiling: MemoryCeiling, tell: Callable[[str], None]) -> WorkerMemory:
        """What keeps the batches of the models to `ceiling` from now on. `tell` gets sentences for people."""

    def _squared_norms(self, whole: float) -> Sequence[float]:
        """|g_i|^2 of every worker of this process, before the sum. `whole`: that of the gradient of the process."""
        return (whole,)

    def _pack(self, position: Position) -> bytes:
        """Model, optimizer and position, bit for bit."""
        packed = io.BytesIO()
        self._write(position, packed)
        return packed.getvalue()

    @abstractmethod
    def _write(self, position: Position, out: BinaryIO) -> None:
        """Write what `_pack` returns, from its beginning to its end. `out` cannot go back."""

    @abstractmethod
    def _restore(self, packed: BinaryIO) -> Position:
        """Put what `_write` wrote into model and optimizer. Raises CheckpointError when it does not fit."""

    def _send_state(self, position: Position, out: BinaryIO) -> None:
        """Write model, optimizer and position for a worker that enters. `out` cannot go back."""
        self._write(position, out)

    def _receive_state(self, state: BinaryIO) -> Position:
        """Put what `_send_state` wrote into model and optimizer. `state` cannot go back.

        Raises CheckpointError when it does not fit, and PeerLostError when it breaks off. Nothing is changed then.
        """
        return self._restore(io.BytesIO(state.read()))

    @abstractmethod
    def _copy_state(self) -> Callable[[], None]:
        """A copy of models and optimizers in memory. The function returned puts it back: all but what schedulers change
        in the optimizers, which stays as it is then."""

    @abstractmethod
    def _storable(self, state: Any, where: str) -> Any:
        """This state of a registered object as `_pack` can hold it. `where`: its name in an error.

        Raises CheckpointError if there is no such form.
        """

    @abstractmethod
    def _hyperparameters(self) -> Any:
        """What schedulers change in the optimizer, such as its learning rate."""

    @abstractmethod
    def _set_hyperparameters(self, saved: Any) -> None:
        """Put back what `_hyperparameters` returned."""

    @abstractmethod
    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        """These samples as one batch. For no indices: the first two samples, which will count for nothing."""

    @abstractmethod
    def _propagate(self, loss: Any) -> None:
        """Run the backward pass. Where `self._now.units` is 0, the loss may be NaN, or no loss at all."""

    def _refused(self, loss: Any) -> str:
        """Why the loss is not what the script says that it is; empty: nothing is known against it."""
        return ""

    def _has_mixed_gradients(self) -> bool:
        """Whether a backward outside run.backward() has added to gradients that are in a sum already."""
        return False

    def _drop_summed_gradients(self) -> bool:
        """Gradients that are in a sum already count for nothing on this worker. Returns whether there are some."""
        return False

    def _batch_of(self, loss: Any, batches: Sequence[Any]) -> int | None:
        """The number of the batch that `loss` was computed from; none: the framework does not show it."""
        return None

    def _look_up_schedules(self) -> None:  # noqa: B027  # some have no need to
        """A loop over batches has ended: what the script has for its learning rate still exists."""

    def _missed_ends(self, passes: int) -> Iterable[str]:
        """A sentence for each schedule of the learning rate that is far from its end (schedules.py) after `passes`."""
        return ()

    def _prepare(self, data: Any, samples: int) -> None:  # noqa: B027  # most do nothing
        """The script is about to get this batch."""

    @abstractmethod
    def _loss_scale(self, loss: Any) -> float:
        """The factor of a GradScaler that is in `loss`; 1 without one."""

    @abstractmethod
    def _number(self, value: Any) -> float:
        """The value of one of the framework's scalars, or of a plain number."""

    @abstractmethod
    def _script_lr(self) -> float:
        """The learning rate as the script has set it, without our factor."""

    def _averages_in_place(self) -> AbstractContextManager[None]:
        """Within it the models have averages in place of their weights. Raises TrainingError where there are none."""
        raise TrainingError(
            f"{self.framework} has no averages of the weights here; torch has, so leave averaged=True and "
            "run.averaged() out"
        )

    @abstractmethod
    def _inference(self) -> AbstractContextManager[None]:
        """Within it the model computes as for evaluation, without gradients."""
