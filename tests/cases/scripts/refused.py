"""Scripts that must not go on: what they ask for would train another model than one process does."""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
)

import dynamix_ps.torch as dynamix
from dynamix_ps.errors import TrainingError
from tests.cases.harness import data, net
from tests.cases.scripts.kept import flattened


def _start(attach: Any, lr: float = 0.1) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, optimizer, attach(model, optimizer, data())


def several_losses_in_a_loop_over_the_loader(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.loader):
        optimizer.zero_grad()
        losses = [mse_loss(model(x), y), model(x).square().mean()]
        torch.autograd.backward(losses if number else losses[:1])
        optimizer.step()


def graph_of_gradients_in_a_loop_over_the_loader(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.loader):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward(create_graph=number > 0)
        optimizer.step()


def step_within_no_sync(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.loader):
        optimizer.zero_grad()
        with run.no_sync() if number else nullcontext():
            mse_loss(model(x), y).backward()
        optimizer.step()


def no_sync_on_one_worker(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.loader):
        with run.no_sync() if run.rank and number == 2 else nullcontext():
            mse_loss(model(x), y).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def _train(run: Any, model: Any, optimizer: Any, **limits: int) -> None:
    for _, x, y in run.batches(**limits):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()


def _train_weighted(attach: Any, weight: Any) -> None:
    """`weight` gets (run, samples of the batch)."""
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y), weight=weight(run, len(x)))
        optimizer.step()


def weight_of_one_worker(attach: Any) -> None:
    _train_weighted(attach, lambda run, samples: None if run.iteration == 2 and run.rank == 0 else samples)


def weight_that_is_nan(attach: Any) -> None:
    _train_weighted(attach, lambda run, samples: float("nan") if run.iteration == 2 and run.rank == 1 else samples)


def no_units_at_all(attach: Any) -> None:
    _train_weighted(attach, lambda run, samples: samples if run.iteration < 2 else 0)


def weight_over_batches(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        loss = mse_loss(model(x), y) / 2
        if number % 2:
            run.backward(loss, weight=len(x))
            optimizer.step()
            optimizer.zero_grad()
        else:
            loss.backward()


def _train_classes(attach: Any, loss: Any, accumulates: int = 1, **options: Any) -> None:
    """`loss` gets (outputs, classes); a step after so many batches, and after the first."""
    model = net(outputs=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for number, (rows, x, _) in enumerate(run.batches(epochs=2)):
        if (number + 1) % accumulates:
            loss(model(x), rows % 3).backward()
            continue
        run.backward(loss(model(x), rows % 3), **options)
        optimizer.step()
        optimizer.zero_grad()


def sum_of_losses(attach: Any) -> None:
    _train_classes(attach, lambda outputs, classes: cross_entropy(outputs, classes, reduction="sum") / 32)


def sum_of_values(attach: Any) -> None:
    _train_classes(attach, lambda outputs, classes: (outputs - classes[:, None]).square().sum() / 64)


def sum_divided_by_what_is_right_once(attach: Any) -> None:
    """By the first sizes, and the last batches of a pass are smaller."""
    own = 24 if os.environ["DMLC_WORKER_ID"] == "0" else 8
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data(200))
    for _, x, y in run.batches(epochs=1):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y, reduction="sum") / own)
        optimizer.step()


def weights_of_classes(attach: Any) -> None:
    of_class = torch.tensor([0.2, 3.0, 0.7])
    _train_classes(attach, lambda outputs, classes: cross_entropy(outputs, classes, weight=of_class))


def ignored_targets(attach: Any) -> None:
    """In the part of one worker alone."""
    worker = int(os.environ["DMLC_WORKER_ID"])
    _train_classes(attach, lambda out, classes: cross_entropy(out, classes - 9 * (classes < worker), ignore_index=-9))


def mean_given_as_sum(attach: Any) -> None:
    _train_classes(attach, cross_entropy, reduction="sum")


def reduction_of_one_worker(attach: Any) -> None:
    reduction = "sum" if os.environ["DMLC_WORKER_ID"] == "1" else "mean"
    _train_classes(attach, lambda outputs, classes: outputs.norm(dim=1)[0], reduction=reduction)


def reduction_of_some_sums(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.batches(iterations=9)):
        loss = mse_loss(model(x), y, reduction="sum") / 32
        if number % 3:
            loss.backward()
            continue
        if number < 6:
            run.backward(loss, reduction="sum")
        else:
            run.backward(loss / len(x) * 32)
        optimizer.step()
        optimizer.zero_grad()


def added_to_the_sum_before(attach: Any) -> None:
    """loss.backward() on top of gradients that are global already."""
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.batches(iterations=9)):
        loss = mse_loss(model(x), y, reduction="sum") / 32
        if number % 3 == 1:
            loss.backward()
            continue
        run.backward(loss, reduction="sum")
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def lengths_of_one_worker(attach: Any) -> None:
    """Sizes in tokens, and one worker counts them in another way."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = int(os.environ["DMLC_WORKER_ID"] == "1")
    _train(
        attach(model, optimizer, data(), lengths=[1 + row % 5 + other for row in range(192)]),
        model,
        optimizer,
        epochs=1,
    )


def nothing(attach: Any) -> None:
    """An ordinary training: what is wrong with it is elsewhere."""
    model, optimizer, run = _start(attach)
    _train(run, model, optimizer, epochs=1)


def unattached_optimizer(attach: Any) -> None:
    """A generator and its optimizer that attach() does not know."""
    model, optimizer, run = _start(attach)
    other = nn.Linear(1, 1)
    other_optimizer = torch.optim.Adam(other.parameters())
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        mse_loss(other(y), y).backward()
        other_optimizer.step()


def lbfgs(attach: Any) -> None:
    model = net()
    attach(model, torch.optim.LBFGS(model.parameters()), data())


def no_optimizer(attach: Any) -> None:
    """The script would change its weights by hand."""
    attach(net(), [], data())


def sparse_adam(attach: Any) -> None:
    model = nn.Embedding(10, 1, sparse=True)
    attach(model, torch.optim.SparseAdam(model.parameters()), data())


def sharded_optimizer(attach: Any) -> None:
    """Each worker is a group of its own here, so that all of the state is there."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    excepthook = sys.excepthook  # torch puts one around it that keeps back what is printed until it returns
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    sys.excepthook = excepthook
    model = net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
    optimizer.consolidate_state_dict()
    _train(attach(model, optimizer, data()), model, optimizer, iterations=4)


def sync_batch_norm(attach: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.SyncBatchNorm(4))
    attach(model, torch.optim.SGD(model.parameters(), lr=0.1), data())


def backward_after_the_sum(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        if run.iteration == 2:
            model(x).mean().backward()
        optimizer.step()


def changed_before_the_sum(attach: Any) -> None:
    """Clipping between loss.backward() and run.backward(), while gradients accumulate."""
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        loss = mse_loss(model(x), y)
        if number % 2:
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        else:
            loss.backward()
            if number == 4:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def step_without_backward(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward() if run.iteration == 2 else run.backward(loss)
        optimizer.step()


def step_before_backward(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=4):
        if run.iteration == 2:
            optimizer.step()
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()


def two_steps(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        if run.iteration == 2:
            optimizer.step()


def loops_of_different_length(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    _train(run, model, optimizer, iterations=5 - run.rank)
    run.close()


def break_on_one_worker(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        if run.rank == 1 and run.iteration == 3:
            break
    run.close()


def break_in_a_pass_on_one_worker(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _ in run.epochs(2):
        for _, x, y in run.batches():
            optimizer.zero_grad()
            run.backward(mse_loss(model(x), y))
            optimizer.step()
            if run.rank == 1 and run.iteration == 3:
                break
    run.close()


def two_batches_ahead(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    batches = run.batches(iterations=8)
    held = deque(islice(batches, 2))
    for batch in batches:
        held.append(batch)
        _, x, y = held.popleft()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()


def ahead_in_a_stream(attach: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, dynamix.shards(range(8), lambda shard: islice(data(), shard, None, 8)))
    batches = run.batches(iterations=8)
    before = next(batches)
    for batch in batches:
        run.backward(mse_loss(model(before[1]), before[2]))
        optimizer.step()
        before = batch
    run.close()


def batches_of_another_thread(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    with ThreadPoolExecutor(1) as pool:
        batches = run.batches(iterations=8)
        for _ in range(8):
            _, x, y = pool.submit(next, batches).result()
            run.backward(mse_loss(model(x), y))
            optimizer.step()
    run.close()


def evaluate_on_rank_0_only(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        if run.rank == 0 and run.every(3):
            run.evaluate(data(), lambda _, x, y: {"mse": (model(x) - y).square().sum()})


def step_on_one_worker_only(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        if run.rank == 0 or run.iteration != 3:
            optimizer.step()


def perturbed_weights(attach: Any) -> None:
    """A worker changes a weight by itself, in iteration 10."""
    model, optimizer, run = _start(attach, lr=1e-3)
    for _, x, y in run.batches(iterations=200):
        if run.rank == 1 and run.iteration == 10:
            with torch.no_grad():
                model[2].weight += 1e-3
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()


def _averaged(attach: Any, decays: tuple[float, float]) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = int(os.environ["DMLC_WORKER_ID"])
    return model, optimizer, attach(model, optimizer, data(), ema_decay=decays[rank])


def ema_decay_of_one_worker(attach: Any) -> None:
    model, optimizer, run = _averaged(attach, (0.9, 0.99))
    _train(run, model, optimizer, iterations=4)


def averaged_on_one_worker(attach: Any) -> None:
    model, optimizer, run = _averaged(attach, (0.9, 0.9))
    _train(run, model, optimizer, iterations=4)
    run.evaluate(data(), lambda _, x, y: mse_loss(model(x), y, reduction="sum"), averaged=run.rank == 0)


def learning_rate_of_one_worker(attach: Any) -> None:
    """A schedule that depends on the rank: the replicas drift apart."""
    model, optimizer, run = _start(attach)
    optimizer.param_groups[0]["lr"] *= 1 + run.rank
    _train(run, model, optimizer, iterations=200)


def frozen_on_one_worker(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        if run.rank == 1 and run.iteration == 3:
            model[0].requires_grad_(False)
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()


def frozen_on_one_worker_before_attach(attach: Any) -> None:
    """Its buckets would be smaller than those of the other one."""
    model = net()
    model[0].requires_grad_(os.environ["DMLC_WORKER_ID"] == "0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    _train(run, model, optimizer, epochs=1)


def frozen_on_one_worker_in_the_last_batch(attach: Any) -> None:
    """No sum follows in this training, but in the next one."""
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=2):
        model[0].requires_grad_(run.iteration == 0 or run.rank == 0)
        mse_loss(model(x), y).backward()
    run.close()
    model.zero_grad()
    _train(attach(model, optimizer, data()), model, optimizer, epochs=1)


def frozen_on_one_worker_in_a_batch_left_out(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        if run.iteration == 3:
            model[0].requires_grad_(run.rank == 0)
            continue
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()


def scale_of_one_worker(attach: Any) -> None:
    """GradScalers that differ."""
    model, optimizer, run = _start(attach)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0 * (1 + run.rank))
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(scaler.scale(mse_loss(model(x), y)))
        scaler.step(optimizer)
        scaler.update()


def infinite_loss(attach: Any) -> None:
    """On one worker."""
    model, optimizer, run = _start(attach)
    for rows, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y) + (torch.inf if (rows == 0).any() else 0))
        optimizer.step()


def shards_differ(attach: Any) -> None:
    """Every worker brings its own part, of its own length."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data(160 + 32 * int(os.environ["DMLC_WORKER_ID"])))
    _train(run, model, optimizer, epochs=1)


def other_samples(attach: Any) -> None:
    """Data sets of one length with different samples."""
    model, rows = net(), torch.arange(160)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(int(os.environ["DMLC_WORKER_ID"]))
    run = attach(model, optimizer, TensorDataset(rows, torch.randn(160, 6), torch.randn(160, 1)))
    _train(run, model, optimizer, epochs=1)


class _OwnOrder(Sampler[int]):
    """Another one on every worker."""

    def __iter__(self) -> Any:
        return iter(torch.randperm(192, generator=torch.Generator().manual_seed(os.getpid())).tolist())

    def __len__(self) -> int:
        return 192


def _load(attach: Any, loader: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _train(attach(model, optimizer, loader), model, optimizer, epochs=1)


def sampler_without_a_seed(attach: Any) -> None:
    _load(attach, DataLoader(data(), batch_size=8, sampler=_OwnOrder()))


def loader_of_a_part(attach: Any) -> None:
    """The script gives every worker its part itself."""
    part = range(int(os.environ.get("DMLC_WORKER_ID", "0")), 192, 2)
    _load(attach, DataLoader(data(), batch_size=8, sampler=SubsetRandomSampler(part)))


def distributed_sampler(attach: Any) -> None:
    sampler = DistributedSampler(data(), 2, int(os.environ.get("DMLC_WORKER_ID", "0")))
    _load(attach, DataLoader(data(), batch_size=8, sampler=sampler))


class _Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        """A part of the samples, as scripts give to each process elsewhere."""
        return islice(data(), int(os.environ.get("DMLC_WORKER_ID", "0")), None, 2)


def stream_of_a_part(attach: Any) -> None:
    _load(attach, DataLoader(_Stream(), batch_size=8))


def shards_of_a_part(attach: Any) -> None:
    mine = range(int(os.environ.get("DMLC_WORKER_ID", "0")), 8, 2)
    _load(attach, dynamix.shards(mine, lambda shard: islice(data(), shard, None, 8)))


def evaluation_over_other_shards(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        shards = dynamix.shards(range(8 - run.rank), lambda shard: islice(data(), shard, None, 8))
        run.evaluate(shards, lambda _, x, y: {"mse": (model(x) - y).square().sum()})
        optimizer.step()


def layer_of_one_worker(attach: Any) -> None:
    """A layer more on one worker only."""
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(epochs=2):
        if run.rank == 1 and run.iteration == 2 and len(model) == 3:
            model.append(nn.Linear(1, 1))
            optimizer.add_param_group({"params": model[3].parameters()})
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()


def frozen_while_it_accumulates(attach: Any) -> None:
    """A layer is frozen between the first batch of a step and the second."""
    model, optimizer, run = _start(attach)
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        model[0].requires_grad_(number != 5)
        loss = mse_loss(model(x), y) / 2
        if number % 2:
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        else:
            loss.backward()


def thawed_between_two_sums(attach: Any) -> None:
    """A layer is thawed for one local backward, and frozen again before the next batch."""
    model, optimizer, run = _start(attach)
    model[0].requires_grad_(False)
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        if number % 2:
            run.backward(mse_loss(model(x), y) / 2)
            optimizer.step()
            optimizer.zero_grad()
        else:
            model[0].requires_grad_(number == 4)
            (mse_loss(model(x), y) / 2).backward()
            model[0].requires_grad_(False)


def frozen_while_one_worker_accumulates(attach: Any) -> None:
    """The same as in `frozen_while_it_accumulates`, for a layer that only the samples of one worker reach."""
    model = nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        model[1].requires_grad_(number != 5)
        loss = mse_loss(model[0](x) + (model[1](x) if run.rank == 0 else 0), y) / 2
        if number % 2:
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        else:
            loss.backward()


def flat_buffer_over_batches(attach: Any) -> None:
    """Gradients are parts of one tensor, and loss.backward() adds to all of them."""
    model, flat = flattened(net())
    optimizer = torch.optim.SGD([flat], lr=0.1)
    run = attach(model, optimizer, data())
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        loss = mse_loss(model(x), y) / 2
        if number % 2 == 0:
            loss.backward()
            continue
        run.backward(loss)
        optimizer.step()
        flat.grad.zero_()


def hook_that_changes_a_gradient_of_one_worker(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    _two_batches_per_step(model, optimizer, run)


def hook_that_scales_a_gradient_of_one_worker(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(0.5))
    _two_batches_per_step(model, optimizer, run)


def hook_where_gradients_add_up(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    model[0].weight.register_hook(lambda gradient: None if gradient.isfinite().all() else gradient.zero_())
    _two_batches_per_step(model, optimizer, run)


def _two_batches_per_step(model: nn.Module, optimizer: torch.optim.Optimizer, run: Any) -> None:
    for number, (_, x, y) in enumerate(run.batches(iterations=8)):
        loss = mse_loss(model(x), y) / 2
        if number % 2 == 0:
            loss.backward()
            continue
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def _train_gathered(attach: Any, step: Any, iterations: int = 6) -> None:
    """`step` gets (run, outputs, optimizer)."""
    model, optimizer, run = _start(attach)
    for _, x, _ in run.batches(iterations=iterations):
        optimizer.zero_grad()
        step(run, model(x))
        optimizer.step()
    run.close()


def _over_all(run: Any, outputs: torch.Tensor) -> torch.Tensor:
    rows = run.gather(outputs)
    return torch.tanh(rows @ rows.T).mean()


def gather_on_one_worker(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        run.backward(_over_all(run, outputs) if run.rank or run.iteration != 3 else outputs.mean())

    _train_gathered(attach, step)


def first_gather_on_one_worker(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        run.backward(_over_all(run, outputs) if run.rank == 0 and run.iteration == 3 else outputs.mean())

    _train_gathered(attach, step)


def gathers_in_another_order(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        run.backward(_over_all(run, outputs))
        labels = [torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int64)]
        for one in labels if run.iteration != 2 or run.rank else labels[::-1]:
            run.gather(one)

    _train_gathered(attach, step)


def one_more_gather_at_the_end(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        run.backward(_over_all(run, outputs))

    model, optimizer, run = _start(attach)
    for _, x, _ in run.batches(iterations=3):
        optimizer.zero_grad()
        step(run, model(x))
        optimizer.step()
    if run.rank == 1:
        run.gather(torch.ones(3))
    run.close()


def own_anchors_against_all(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        run.backward(torch.tanh(outputs @ run.gather(outputs).T).mean())

    _train_gathered(attach, step)


def dropout_behind_gather(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        torch.manual_seed(run.rank)
        run.backward(nn.functional.dropout(run.gather(outputs)).square().mean())

    _train_gathered(attach, step)


def gather_and_sum(attach: Any) -> None:
    _train_gathered(attach, lambda run, outputs: run.backward(_over_all(run, outputs), reduction="sum"))


def gather_and_weight(attach: Any) -> None:
    _train_gathered(attach, lambda run, outputs: run.backward(_over_all(run, outputs), weight=len(outputs)))


def penalty_on_gathered_gradients(attach: Any) -> None:
    def step(run: Any, outputs: torch.Tensor) -> None:
        loss = _over_all(run, outputs)
        (gradient,) = torch.autograd.grad(loss, outputs, create_graph=True)
        run.backward(loss + gradient.square().sum())

    _train_gathered(attach, step)


def gather_after_the_loop(attach: Any) -> None:
    model, optimizer, run = _start(attach)
    _train(run, model, optimizer, iterations=2)
    run.gather(model(torch.ones(2, 6)))


def _train_and_tell(attach: Any, mean: Any) -> None:
    """`mean` gets the run, after each step."""
    model, optimizer, run = _start(attach)
    for _, x, y in run.batches(iterations=4):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        mean(run)
    run.close()


def mean_on_rank_0_only(attach: Any) -> None:
    _train_and_tell(attach, lambda run: run.mean(1.0) if run.rank == 0 and run.iteration == 2 else None)


def mean_of_other_names(attach: Any) -> None:
    _train_and_tell(attach, lambda run: run.mean({"loss" if run.rank else "accuracy": 1.0}))


def mean_with_a_negative_weight(attach: Any) -> None:
    _train_and_tell(attach, lambda run: run.mean(1.0, weight=-run.rank))


def mean_over_nothing(attach: Any) -> None:
    _train_and_tell(attach, lambda run: run.mean(1.0, weight=0))


def before_all_that_fails(attach: Any) -> None:
    def prepare() -> None:
        raise TrainingError(f"no room left for {os.getcwd()[:1]}data")

    dynamix.before_all(prepare)


def before_all_on_one_worker(attach: Any) -> None:
    if os.environ["DMLC_WORKER_ID"] == "1":
        dynamix.before_all()
    _start(attach)


def before_all_after_attach(attach: Any) -> None:
    _start(attach)
    dynamix.before_all()
