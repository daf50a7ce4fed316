"""The hook for MXNet: every worker its own batch size, changed while training runs.

import dynamix_ps.mxnet as dynamix                                          # 1  before mxnet itself
import mxnet as mx
from mxnet import autograd, gluon
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
run = dynamix.attach(net, trainer, loader)                                # 2
for inputs, targets in run.batches(epochs=3):                             # 3  in place of epochs and loader
    with autograd.record():
        loss = loss_function(net(inputs), targets).mean()
    run.backward(loss)                                                    # 4  in place of loss.backward()
    trainer.step(1)                                                       # 5  1: the gradient is a mean already
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dynamix_ps.numpy_names  # noqa: F401  (before mxnet)

# isort: split
from mxnet.gluon import Block, Trainer
from mxnet.gluon.data import DataLoader

from dynamix_ps.errors import TrainingError
from worker_hooks.before_all import Place, run_before_all
from worker_hooks.joining import Attached, join
from worker_hooks.mxnet.adapter import MXNetAdapter, open_adapters
from worker_hooks.process import failure
from worker_hooks.run import Run
from worker_hooks.session import Session
from worker_hooks.settings import Settings


def attach(
    net: Block,
    trainer: Trainer,
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    lengths: Any = None,
) -> Run:
    """Join the other workers and take over batches, gradients and records of this model.

    A training that is still attached to this model or trainer ends.

    Args:
        net: its parameters become rank 0's on every worker.
        trainer: of these parameters; its optimizer's state becomes rank 0's too.
        data: a Gluon DataLoader of the script, or a data set (`len`, `[i]`); the same on every worker.
        batch_size: of each worker where no cluster file says otherwise. Without it, the loader's, or 64.
        seed: of the data order where no cluster file says otherwise.
        lengths: tokens of every sample of the data set, whole numbers, where `batch.unit` in the cluster file says so.

    Raises:
        ConfigError: the cluster file or a variable is wrong.
        EnvironmentNotReady: BytePS lacks its MXNet plugin, or the data plane is not one of MXNet's.
        TrainingError: data, model, trainer or number of workers do not fit together.
        CheckpointError: the checkpoint to resume from is unusable.
    """
    failure.install()
    settings = Settings.from_environment()
    if batch_size and isinstance(data, DataLoader):
        raise TrainingError("attach() got a DataLoader and batch_size=...; give batch_size to the DataLoader")
    for adapter in [one for one in open_adapters if one.net is net or one.trainer is trainer]:
        adapter.training.close()
    session = Session.join(settings, MXNetAdapter.framework)
    return join(MXNetAdapter(net, trainer), data, session, Attached(batch_size, seed, lengths))


def before_all(prepare: Callable[[], object] | None = None) -> Place:
    """As `dynamix_ps.torch.before_all`: worker 0 calls `prepare()` while the others wait. Before `attach`."""
    failure.install()
    return run_before_all(MXNetAdapter.framework, prepare)
