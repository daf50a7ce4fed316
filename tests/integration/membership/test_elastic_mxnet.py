"""A job in MXNet over BytePS: a free place is filled, a worker is killed and comes back, the one that leads leaves.

All end with the result of one process, in torch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import SAMPLES, Story
from tests.integration.training.small_training import NEEDS_MXNET
from tests.launching import dynamix, wait_for

pytestmark = [pytest.mark.timeout(180), NEEDS_MXNET]

# What both train: in each step of MXNet's SGD the momentum keeps the rates that earlier gradients had.
DATA = f"""\
import numpy as np
draw = np.random.default_rng(0)
inputs, targets = draw.standard_normal(({SAMPLES}, 5)), draw.integers(0, 3, {SAMPLES})
weights = [draw.uniform(-0.5, 0.5, shape) for shape in ((7, 5), (7,), (3, 7), (3,))]
RATE, MOMENTUM = 0.0625, 0.875  # exact in float32, which MXNet keeps them in
"""
IN_TORCH = (
    DATA
    + """\
import torch
class Momentum(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                moved = self.state[parameter].setdefault("moved", torch.zeros_like(parameter))
                moved.mul_(MOMENTUM).sub_(parameter.grad, alpha=group["lr"])
                parameter.add_(moved)
data = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
with torch.no_grad():
    for parameter, values in zip(model.parameters(), weights, strict=True):
        parameter.copy_(torch.from_numpy(values))
optimizers = [Momentum(model.parameters(), {"lr": RATE})]
def before(iteration): ...
"""
)
IN_MXNET = (
    DATA
    + """\
import dynamix_ps.mxnet as dynamix
import mxnet as mx
from mxnet import autograd, gluon
FAULT
data = gluon.data.ArrayDataset(mx.nd.array(inputs, dtype="float64"), mx.nd.array(targets, dtype="float64"))
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(7, activation="tanh", in_units=5, dtype="float64"))
net.add(gluon.nn.Dense(3, in_units=7, dtype="float64"))
net.initialize()
parameters = [parameter for layer in net for parameter in (layer.weight, layer.bias)]
for parameter, values in zip(parameters, weights, strict=True):
    parameter.set_data(mx.nd.array(values, dtype="float64"))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE, "momentum": MOMENTUM}, kvstore=None)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
run = dynamix.attach(net, trainer, data)
while True:
    for batch, labels in run.batches(LENGTH):
        with autograd.record():
            loss = loss_of(net(batch), labels).mean()
        fault(run.rank, run.iteration)
        run.backward(loss)
        trainer.step(1)
        write_down()
    if enough():
        break
np.savez(f"weights-{run.rank}.npz", *[parameter.data().asnumpy() for parameter in parameters])
run.close()
"""
)
# Worker 1 is killed once three were there; when it is back, worker 0 leaves, and the others end that epoch.
FAULT = """\
three = after = 0  # iterations with all, and without worker 0
def fault(rank, iteration):
    if rank == 1 and first and three == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0 and three == 15:
        os.kill(os.getpid(), signal.SIGUSR1)
def stepped(present):
    global three, after
    three += len(present) == 3
    after += 0 not in present
    time.sleep(0.05)  # a longer training is no better test
def enough():
    return after >= 10
"""


def test_workers_of_mxnet_come_and_go(tmp_path: Path) -> None:
    elastic = ", max_workers: 3, restarts: 1"
    keys = "policy: {name: static}\n"
    story = Story(
        tmp_path, None, FAULT, IN_TORCH, min_workers=1, elastic=elastic, keys=keys, workers=2, script=IN_MXNET
    )
    job = story.launch()
    wait_for(lambda: len(story.sums(0)) > 5 or job.poll() is not None, "two that train", limit_s=90)
    asking = dynamix("join", "2", cwd=tmp_path)
    told, _ = asking.communicate(timeout=90)
    output, _ = job.communicate(timeout=120)
    assert (asking.returncode, job.returncode) == (0, 0), told + output
    first = story.sums(0)
    last = [one for one in story.sums(2) if 2 in one["present"]]  # before that it follows the others
    alone = next(number for number, one in enumerate(first) if 2 in one["present"])
    assert first[alone:] == last[: len(first) - alone], "from its entry on a newcomer sees the same sums"
    sums = first[:alone] + last
    story.check([1, 2], sums=sums)
    story.check_epochs(2, sums)
    there = list(dict.fromkeys(tuple(one["present"]) for one in sums))
    assert there == [(0, 1), (0, 1, 2), (0, 2), (1, 2)], there
    summary = story.summary()
    assert [row["state"] for row in summary["per_worker"]] == ["left", "finished", "finished"]
    assert [one.split(",")[0].split(": ")[1] for one in summary["losses"]] == ["worker 1 lost"]
    assert [one.split(": ")[1] for one in summary["departures"]] == ["worker 0 left"]
    assert [one.split(": ")[1] for one in summary["arrivals"]] == ["worker 2 entered", "worker 1 entered"]
    story.assert_nothing_left()
