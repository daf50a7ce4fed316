"""How a training script joins the other workers: `attach`, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from dynamix_ps.errors import TrainingError
from worker_hooks.joining import FIRST_SIZE, Attached, join
from worker_hooks.loading.data_set import check_map_style
from worker_hooks.process import failure
from worker_hooks.process.adopted import Chosen, begin_job, meet_others
from worker_hooks.run import Run
from worker_hooks.sampling.shard_list import Shards
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.adapter import TorchAdapter, open_adapters
from worker_hooks.torch.data.batches import stack
from worker_hooks.torch.data.loader import batch_size_of

if TYPE_CHECKING:
    from worker_hooks.before_all import Place

_AVERAGING_PACKAGES = ("byteps", "horovod")  # whose optimizers sum gradients themselves
_SHARDED = "ZeroRedundancyOptimizer"  # torch has it only where torch.distributed is available


def attach(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    lengths: Any = None,
    ema_decay: float | None = None,
    policy: str | None = None,
    batch: tuple[int, int] | None = None,
) -> Run:
    """Join the other workers and take over batches, gradients and records of this training.

    A training that is still attached to one of these models or optimizers ends.

    Args:
        model: one or several. Their parameters and buffers become rank 0's on every worker.
        optimizer: one or several. Every parameter they step is summed; their state becomes rank 0's too.
        data: a DataLoader of the script, a map-style data set (`len`, `[i]`), an IterableDataset, or `shards(...)`;
            the same on every worker.
        batch_size: of each worker where no cluster file says otherwise. Without it, the loader's, or 64.
        seed: of the data order where no cluster file says otherwise.
        collate_fn: makes a batch of the list of its samples, for data without a loader.
        num_workers: processes that load the samples of data without a loader.
        lengths: tokens of every sample of the data set, whole numbers, where `batch.unit` in the cluster file says so.
        ema_decay: keep an exponential moving average of the weights, for `run.evaluate(averaged=True)` and
            `run.averaged()`. An iteration of B samples keeps `ema_decay ** (B / B0)` of it, where B0 is the global
            batch of the first sizes. Without it no weights are averaged.
        policy: what chooses the batch sizes, in a job that torchrun or another launcher has started without a cluster
            file: a name of the cluster file's `policy`. Without it, `proportional`.
        batch: smallest and largest batch size of every worker in such a job. Without it, a quarter of the first sizes,
            and four times as much.

    Raises:
        UsageError: the variables of another launcher are incomplete, or `policy` and `batch` contradict a cluster file.
        ConfigError: the cluster file or a variable is wrong.
        TrainingError: data, model, optimizer or number of workers do not fit together.
        CheckpointError: the checkpoint to resume from is unusable.
    """
    from worker_hooks.process.freed_memory import keep_freed_memory  # which nothing needs before

    failure.install()
    keep_freed_memory()
    begin_job(batch_size or batch_size_of(data) or FIRST_SIZE, Chosen.of(policy, batch))
    settings = Settings.from_environment()
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    check_optimizers(optimizers)
    if settings.guards_rate:
        check_rates(optimizers)
    data = with_loading(data, batch_size, collate_fn, num_workers)
    for adapter in [one for one in open_adapters if one.shares(models, optimizers)]:
        adapter.training.close()
    session = Session.join(settings, TorchAdapter.framework)
    return join(TorchAdapter(models, optimizers, ema_decay), data, session, Attached(batch_size, seed, lengths))


def before_all(prepare: Callable[[], object] | None = None) -> Place:
    """Let worker 0 call `prepare()` while the others wait; then all go on. Before `attach`. Collective.

        place = dynamix.before_all(lambda: download(DATA))   # such as to a folder that all hosts share
        data = read(DATA)                                    # on every worker

    Without `prepare` all workers only wait for each other. Started by plain `python`, it just calls `prepare`. A worker
    that comes to a job that trains calls nothing, and does not wait: the others have done it.

    Returns:
        `rank` and `size`, as those of the run that `attach` returns.

    Raises:
        TrainingError: on the other workers, if `prepare` raises on worker 0, where the exception goes on; on all, if
            some are in `attach` already; after `attach`.
    """
    from worker_hooks.before_all import run_before_all

    failure.install()
    meet_others()
    return run_before_all(TorchAdapter.framework, prepare)


def shards(shards: Sequence[Any], open_shard: Callable[[Any], Iterable[Any]], *, shuffle: bool = True) -> Shards:
    """A list of shards, such as files, for `attach` in the place of a data set. Each worker reads some of them.

    Args:
        shards: names of files or URLs, numbers of row groups, or whatever else `open_shard` understands; the same list
            on every worker.
        open_shard: returns the samples of one shard, in the same order every time. It runs in a thread of its own, on
            the worker that reads the shard.
        shuffle: whether the shards come in another order in every pass. The samples of a shard stay in its order.

    Raises TrainingError if there is no shard, or if `open_shard` cannot be called.
    """
    failure.install()
    return Shards(shards, open_shard, shuffle)


def with_loading(
    data: Any, batch_size: int | None, collate_fn: Callable[[list[Any]], Any] | None, num_workers: int
) -> Any:
    """`data`, in a DataLoader where one of these options needs it.

    Raises TrainingError where `data` is a loader, which has these options itself.
    """
    if isinstance(data, DataLoader):
        for name, value in (("batch_size", batch_size), ("collate_fn", collate_fn), ("num_workers", num_workers)):
            if value:
                raise TrainingError(f"attach() got a DataLoader and {name}=...; give {name} to the DataLoader")
        return data
    if isinstance(data, Shards):
        from worker_hooks.loading.shard_source import ShardSource
        from worker_hooks.torch.data.shard_processes import GroupedShards

        return ShardSource(GroupedShards(data, num_workers) if num_workers else data, collate_fn or stack)
    if collate_fn is None and not num_workers:
        return data
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size or FIRST_SIZE, num_workers=num_workers, collate_fn=collate_fn)
    check_map_style(data)
    return DataLoader(data, batch_size or FIRST_SIZE, shuffle=True, num_workers=num_workers, collate_fn=collate_fn)


def check_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raises TrainingError for optimizers whose steps would differ between workers, or need other workers."""
    if not optimizers:
        raise TrainingError(
            "attach() got no optimizer, so nobody sees a step, and the learning rate cannot follow the batch sizes; "
            "give attach() the optimizer. torch.optim.SGD(model.parameters(), lr) makes the steps p -= lr * p.grad"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            inside = [name for name, one in getattr(optimizer, "__dict__", {}).items() if _is_optimizer(one)]
            instead = f"the one inside of it, its attribute {inside[0]!r}" if inside else "one, or a list of them"
            raise TrainingError(
                f"attach() got a {type(optimizer).__name__} as optimizer, which is no torch.optim.Optimizer, so nobody "
                f"sees when it steps; give attach() {instead}. The script may call the wrapper as before"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TrainingError(
                "LBFGS calls its closure many times per step and decides by the loss of this worker alone; "
                "use an optimizer that takes one gradient per step"
            )
        if type(optimizer).__module__.partition(".")[0] in _AVERAGING_PACKAGES:
            raise TrainingError(
                "the optimizer is wrapped in DistributedOptimizer, which averages gradients itself without regard to "
                "batch sizes; give attach() the optimizer inside of it"
            )
        if any(kind.__name__ == _SHARDED for kind in type(optimizer).__mro__):
            raise TrainingError(
                f"{_SHARDED} keeps a part of its state on each worker: no worker could save all of it, or go on when "
                "another one is lost; give attach() an optimizer of the class that it wraps"
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise TrainingError("SparseAdam needs sparse gradients, which are summed as dense ones here; use Adam")


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer)


def check_rates(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raises TrainingError for an optimizer without a learning rate that could be multiplied."""
    for optimizer in optimizers:
        if not all(isinstance(group.get("lr"), int | float | torch.Tensor) for group in optimizer.param_groups):
            raise TrainingError(
                f"the cluster file has lr: guard, and {type(optimizer).__name__} has a parameter group whose `lr` is "
                "no number; give it one, or use lr: script"
            )
