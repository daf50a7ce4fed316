"""The data of a training, for frameworks that loop over a DataLoader themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from dynamix_ps.errors import TrainingError
from dynamix_ps.torch import Run
from worker_hooks.joining import FIRST_SIZE
from worker_hooks.settings import Settings


class Passes:
    """In place of the script's DataLoader: each loop is one pass over the data, in batches of this worker's sizes.

    A loop after one that was left begins a new pass. The length is that of a pass if the plan stays as it is; sizes
    change, so a loop may give more or fewer batches, and `is_last` says which is the last one.
    """

    def __init__(self, loader: DataLoader[Any], workers: int, begin: Callable[[DataLoader[Any]], Run]) -> None:
        """`begin` attaches; it is called for the first batch."""
        self.loader, self.dataset = loader, loader.dataset
        self._workers, self._begin = workers, begin
        self.epochs: int | None = None  # passes in all, where the framework says so
        self.run: Run | None = None
        self._numbers: Iterator[int] = iter(())  # of the passes, inside of run.epochs()
        self._batches: Iterator[Any] = iter(())  # of the pass at hand
        self._saved: Mapping[str, Any] | None = None
        self._may_begin_inside = True  # only the first pass, after a resume

    def attach(self) -> Run:
        """The training, attached by the first call.

        Raises TrainingError for a stream: where a pass over it ends is known too late for a framework.
        """
        if self.run is None:
            if isinstance(self.dataset, IterableDataset):
                raise TrainingError(
                    f"the training data is a stream ({type(self.dataset).__name__}); a framework needs a data set with "
                    "len(d) and d[i]. For streams write the loop yourself: `for batch in run.batches()`"
                )
            self.run = self._begin(self.loader)
            if self._saved is not None:
                self.run.load_state_dict(self._saved)
            if self.epochs:
                self._numbers = self.run.epochs(self.epochs)
        return self.run

    def __iter__(self) -> Iterator[Any]:
        run = self.attach()
        self.end_pass()
        if self.epochs and run.position_in_pass and not self._may_begin_inside:
            raise TrainingError(
                f"a pass over the data was left after {run.iteration} iterations, before its end, and another one "
                "begins; let every pass end (limit training by steps or epochs, not by a part of the data)"
            )
        left = run.position_in_pass > 0 and not self._may_begin_inside
        last = run.epoch + 1 + left
        self._batches = run.batches() if next(self._numbers, None) is not None else run.batches(epochs=last)
        self._may_begin_inside = False
        for batch in self._batches:  # noqa: UP028  (it stays open if this loop is left, so that the next one knows)
            yield batch

    @property
    def is_last(self) -> bool:
        """Whether the batch at hand is the last of its pass."""
        return self.run is not None and self.run.is_last_batch

    def end_pass(self) -> None:
        """The last batch of the pass is done, although nobody has asked for the one behind it."""
        if self.is_last:
            next(self._batches, None)

    def __len__(self) -> int:
        if self.run is not None:
            return self.run.batches_per_pass
        plan = Settings.from_environment().first_plan((self.loader.batch_size or FIRST_SIZE,) * self._workers)
        return max(-(-len(self.loader.sampler) // plan.global_batch), 1)  # type: ignore[arg-type]  # a sampler with len

    @property
    def done(self) -> float:
        """Passes that are complete, with the part of the present one."""
        run = self.run
        return 0.0 if run is None else run.epoch + run.position_in_pass / run.samples_per_pass

    @property
    def batches_left(self) -> int:
        """Batches of the training from the one at hand on, if the plan stays as it is. Needs `epochs`."""
        run = self.run
        assert run is not None and self.epochs is not None
        if self.is_last and run.epoch + 1 == self.epochs:
            return 1
        samples = (self.epochs - run.epoch) * run.samples_per_pass - run.position_in_pass
        return max(round(samples / sum(run.planned_sizes)), 2)

    def state_dict(self) -> dict[str, Any]:
        """The place in the data and the plan, for a checkpoint of the framework."""
        return self.run.state_dict() if self.run is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Training will begin at the place that `state_dict` returned."""
        self._saved = state or None
