"""What a script sees of its training, whatever the framework: `Run`. training.py tells what happens in an iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker_hooks.iteration.reduction import Kind

if TYPE_CHECKING:
    from worker_hooks.training import Training


class Run:
    """One training, of which `rank`, `size` and the progress may be read at any time."""

    def __init__(self, training: Training) -> None:
        self.training, self.adapter = training, training.adapter
        workers = training.session.workers
        self.rank, self.size = workers.here.start, workers.count

    @property
    def models(self) -> Sequence[Any]:
        """Those of `attach`."""
        return self.adapter.models

    @property
    def optimizers(self) -> Sequence[Any]:
        """Those of `attach`; in MXNet its trainer."""
        return self.adapter.optimizers

    # -- progress -----------------------------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """Iterations that are complete."""
        return self.training.progress.iteration

    @property
    def epoch(self) -> int:
        """Passes over the data set that are over."""
        return self.training.progress.cursor.epoch

    @property
    def batch_size(self) -> int:
        """Planned batch size of this worker in the present iteration."""
        return sum(self.training.progress.sizes_here)

    @property
    def planned_sizes(self) -> tuple[int, ...]:
        """Planned batch size of every worker in the present iteration."""
        return self.training.progress.plan.batch_sizes

    @property
    def is_last_batch(self) -> bool:
        """Whether the present batch is the last one of its pass over the data."""
        return self.training.progress.is_last_batch

    @property
    def position_in_pass(self) -> int:
        """Samples of all workers that the present pass over the data has had."""
        return self.training.progress.position_in_pass

    @property
    def samples_per_pass(self) -> int:
        """Samples of all workers in a pass over the data; 0 in the first pass over a stream."""
        return self.training.data.stream.length

    @property
    def batches_per_pass(self) -> int:
        """Batches in a pass over the data if the plan stays as it is; 0 in the first pass over a stream."""
        return self.training.progress.batches_per_pass

    def steps_planned(self, epochs: int) -> int:
        """About how many iterations a training of so many passes over the data has, those so far too.

        It is for the sizes of the present plan: ask again where they have changed. Raises TrainingError in the first
        pass over a stream.
        """
        return self.training.progress.steps_planned(epochs)

    @property
    def progress(self) -> float:
        """Part of the training that is done, 0 to 1, for schedules. `run.batches()` says what the whole training is.

        Before `run.batches()` it is what it was when the checkpoint was saved, 0 without one. Raises TrainingError when
        the end of training is not known.
        """
        return self.training.progress.known_ratio

    def every(self, iterations: int) -> bool:
        """True when the number of complete iterations is a multiple of `iterations` (the same on all workers)."""
        return self.training.progress.every(iterations)

    def every_samples(self, samples: int) -> bool:
        """True after the iteration in which the samples of all workers pass a multiple of `samples`.

        Unlike `every`, this comes as often with large batches as with small ones.
        """
        return self.training.progress.every_samples(samples)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of `count` passes over the data, from 0, as `range(count)`; `batches()` inside gives one pass.

        Each call has passes of its own: a second call trains `count` more. After a resume a call begins with the pass
        at hand, and calls whose passes are complete give nothing.

        A pass ends where the script leaves the loop over its batches by `break`: the next one begins at its beginning,
        and so does a resume from a checkpoint that is saved after the loop. `break` at the same place on all workers.
        """
        return self.training.loops.epochs(count)

    def batches(self, epochs: int | None = None, iterations: int | None = None) -> Iterator[Any]:
        """This worker's batches, until `epochs` passes or `iterations` iterations are complete in all.

        If the limit was already reached, training runs for that many more: `for epoch in range(3):` with
        `run.batches(epochs=1)` trains three passes, as `run.batches(epochs=epoch + 1)` does. Inside `run.epochs()` no
        limit is needed.

        A new call goes on in the middle of a pass if the one before came to its limit there, or was left by `break`.
        Where both ask for one pass, as in both of these loops, it begins a new pass after a `break`.

        The first call tells the policy where training ends; near the end it may want larger batches and a lower rate.
        A second call tells it that the end is unknown, and so does `epochs=1`, with which loops over passes begin: for
        a training of one pass, name the end by `run.epochs(1)`.

        A script may take a batch before it trains the one before, such as to copy it to a device; not two. A batch
        that is not trained is left out.

        A worker whose share is empty still gets two samples to run on, and their gradient counts for nothing.
        """
        return self.training.loops.batches(epochs, iterations)

    def backward(self, loss: Any, correct: Any = None, weight: Any = None, reduction: Kind = "mean") -> None:
        """Backward pass of `loss`, the *mean* over this batch; afterwards gradients are those of the global batch.

        Gradients that `loss.backward()` has added before, in this batch or in earlier ones since the last sum, are
        part of it. `loss` may be scaled by a torch GradScaler.

        `correct` is the number of correctly classified samples of the batch, if there is such a thing; it gives
        the policy the batch accuracy.

        `weight` is the number of units, such as tokens, that `loss` is the mean over, where these are not samples:
        the gradient is then the mean over the units of all workers. With 0 neither `loss` nor gradients of this batch
        count, and `loss` may be NaN. `correct` is then the number of correct units.

        `reduction="sum"`: `loss` is a sum over samples, which may be divided by a constant, and the gradient is that of
        the sum of the losses of all workers.

        Raises TrainingError, on all workers and before a weight changes, if a loss is not finite, if workers do not do
        the same, if their weights differ, or if no worker has a unit.
        """
        self.training.backward(loss, correct, weight, reduction)

    @property
    def loader(self) -> Any:
        """The loader of `attach`, to be iterated as before: each loop over it is a pass over the data. In torch.

            for inputs, targets in run.loader:
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), targets)  # the mean over the batch
                loss.backward()                               # as run.backward(loss)
                optimizer.step()

        In such a loop, `loss.backward()` computes the gradient of the global batch, as under DistributedDataParallel.
        `run.no_sync()` accumulates. A loss over units, or one that is a sum, is given to `run.backward`. `len()` is the
        number of batches of a pass if the plan stays as it is. All else is the loader's.

        Raises TrainingError in MXNet.
        """
        return self.adapter.loader(self.training)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """`with run.no_sync():` around `loss.backward()`: its gradient stays here, and is part of the next sum."""
        loops = self.training.loops
        before, loops.sums_backward = loops.sums_backward, False
        try:
            yield
        finally:
            loops.sums_backward = before

    def synchronize(self) -> None:
        """Does nothing but check: gradients are global when `run.backward()` returns. For scripts that call it."""
        self.training.now.check_summed()
        self.training.sums.complete()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """Scale the global gradient down to this norm if it is larger; returns its norm before."""
        self.synchronize()
        return self.adapter.clip_norm(max_norm, norm_type)

    def clip_grad_value_(self, clip_value: float) -> None:
        """Limit every value of the global gradient to this size."""
        self.synchronize()
        self.adapter.clip_value(clip_value)

    def gather(self, tensor: Any) -> Any:
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
            TrainingError: in MXNet, which has no such loss; on all workers and before a weight changes, if another one
                does something else, if the losses depend on the rows in different ways, or if the loss is given to
                run.backward() with `weight` or `reduction="sum"`.
            PeerLostError: on all workers, if a worker is lost whose rows are in a loss.
        """
        return self.adapter.gather(tensor, self.training)

    def batch_sampler(self) -> Any:
        """For a DataLoader of the script: `loader = DataLoader(dataset, batch_sampler=run.batch_sampler())`.

        `dataset` is the one that `attach` got. Each loop over the loader is a pass over the data, as
        `run.batches(epochs=1)` is.

        Raises TrainingError where `attach` got a stream, and in MXNet.
        """
        return self.adapter.batch_sampler(self.training)

    def agree(self, what: str) -> None:
        """Wait until all workers are about to do `what`, before a sum that is not one of gradients. Collective.

        Raises TrainingError, on every worker, if another one does something else.
        """
        self.training.sums.announce(what)

    # -- beside the iterations ----------------------------------------------------------------------------------------

    def paused(self) -> AbstractContextManager[None]:
        """`with run.paused():` around what is not training, so that it does not count as training time."""
        return self.training.observer.paused()

    def averaged(self) -> AbstractContextManager[None]:
        """`with run.averaged():` around what is done with the averaged weights: saving, exporting, drawing samples.

        In here they are the weights of the models; afterwards these have their own back, bit for bit. Any worker may
        do it. Does not count as training time.

        Raises TrainingError where no weights are averaged: `attach(..., ema_decay=...)`, in torch.
        """
        return self.training.evaluator.averaged()

    def evaluate(
        self,
        data: Any,
        score: Callable[..., Any],
        batch_size: int | None = None,
        *,
        averaged: bool = False,
        higher_is_better: str | Sequence[str] = (),
        lower_is_better: str | Sequence[str] = (),
    ) -> Any:
        """Means per sample over `data`, computed by all workers together, each on its share. Collective.

        Does not count as training time.

        Args:
            data: a map-style data set or a DataLoader, in torch also `shards(...)`; the same on every worker.
            score: returns sums over the batch that it gets, best as a dict: `{"accuracy": ..., "loss": ...}`. One
                number or a tuple of numbers is recorded as `value`, or as `value_1`, `value_2` and so on. A batch that
                is a tuple comes as positional arguments, a dict as keyword arguments, all else as one argument.
            batch_size: samples that `score` gets at once; without it, the loader's, or 256.
            averaged: with the averaged weights of `attach(..., ema_decay=...)`. Recorded as `averaged_accuracy` and so
                on, beside the values of the weights themselves.
            higher_is_better: names of values whose direction their name does not tell.
            lower_is_better: likewise.

        Returns:
            The means, in the form in which `score` returns its sums.

        Raises:
            TrainingError: the data set is empty or differs between workers, `score` does not return named sums, or no
                weights are averaged.
        """
        directions = higher_is_better, lower_is_better
        return self.training.evaluator.evaluate(data, score, batch_size, averaged, *directions)

    def mean(self, values: Any, weight: float = 1.0) -> Any:
        """The mean over all workers of numbers that the script has measured, the same on every worker. Collective.

            loss = run.mean(total / len(part), weight=len(part))   # `part`: what this worker has measured it on

        Args:
            values: a dict of named numbers, a tuple or list of numbers, or one number; the same names everywhere.
            weight: what those of this worker count with: sum(weight * value) / sum(weight). Without it each worker
                counts the same. With 0 they do not count, and may be NaN.

        Returns:
            The means, in the form of `values`.

        Raises:
            TrainingError: on all workers, if another one calls something else or has other names, if `values` or
                `weight` are unusable on one, or if no worker has a weight.
        """
        return self.training.evaluator.mean(values, weight)

    def record(
        self,
        values: Mapping[str, float],
        *,
        higher_is_better: str | Sequence[str] = (),
        lower_is_better: str | Sequence[str] = (),
    ) -> None:
        """Record what the script has measured by itself of the model as it is, as `evaluate` does with its means.

        Only worker 0's values are recorded. Names and directions are those of `evaluate`.

        Raises TrainingError for a direction of a name that is not in `values`.
        """
        self.training.evaluator.record(values, higher_is_better, lower_is_better)

    def listen(self, listener: Callable[[dict[str, Any]], object]) -> None:
        """Give `listener` every event and every window record of this worker from now on, as in its file of the run
        folder.

        It is called in a thread of its own, so it costs the training no time. Its first error ends it, and the summary
        says so. Loggers: `dynamix_ps.integrations.loggers`.
        """
        self.training.session.reporter.listen(listener)

    # -- the state ----------------------------------------------------------------------------------------------------

    def register(self, **objects: Any) -> None:
        """Make the state of further objects part of checkpoints: schedulers, a GradScaler, averages of the weights.

        `run.register(scheduler=scheduler, scaler=scaler)`, after attach and on every worker. Each has `state_dict()`
        and `load_state_dict()`. After a resume their state is restored at once.

        Raises:
            TrainingError: an object lacks these methods, its name is taken, or a checkpoint cannot hold its state.
            CheckpointError: the state in the checkpoint is not of this object.
        """
        self.training.checkpoints.register(**objects)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint of the script's own: place in the data, plan, learning-rate state and registered objects.

        Not in it: model and optimizer. The same on all workers, except for registered objects; any of them may call it.
        """
        return self.training.checkpoints.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place that `state_dict` returned. On every worker, after attach and before the first batch.

        There may be more or fewer workers than when it was saved: they share its global batch.
        Objects registered before or after this call get their state back.

        Raises:
            TrainingError: training has begun, or the state is of other data.
            CheckpointError: the state is damaged; the message names the field.
        """
        self.training.checkpoints.load_state_dict(state)

    def save(self, path: Path | str | None = None) -> None:
        """Write a checkpoint (rank 0; others return at once): model, optimizer, registered objects, place, plan.

        Call it at the end of the loop's body, after schedulers have made their step. Default: `checkpoints/last.pt`
        (torch) or `last.npz` (MXNet) in the run folder, where the two before it stay as `last.1` and `last.2`. A file
        is complete or absent. If it cannot be written, training goes on; a warning and the summary say so. Does not
        count as training time.
        """
        self.training.checkpoints.save(path)

    def close(self) -> None:
        """End this training: its hooks leave model and optimizers. Also runs at exit. Collective, but for who has left.

        Afterwards the script may attach another training.
        """
        self.training.close()
