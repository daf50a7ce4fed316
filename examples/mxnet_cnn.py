"""A convolutional network on handwritten digits, with MXNet. A number marks each line that DYNAMIX needs.

    dynamix launch -c examples/cluster.yaml -- python examples/mxnet_cnn.py

Started with plain `python`, it is ordinary training in one process.
"""

import dynamix_ps.mxnet as dynamix  # 1, before MXNet itself

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
inputs = mx.nd.array(images.reshape(-1, 1, 8, 8) / 16, dtype=np.float32)
targets = mx.nd.array(labels, dtype=np.int64)
train_set = gluon.data.ArrayDataset(inputs[:1500], targets[:1500])
test_set = gluon.data.ArrayDataset(inputs[1500:], targets[1500:])
loader = gluon.data.DataLoader(train_set, batch_size=64, shuffle=True, num_workers=2, thread_pool=True)

mx.random.seed(0)
net = nn.HybridSequential()
net.add(
    nn.Conv2D(16, 3, padding=1, activation="relu"), nn.MaxPool2D(2),
    nn.Conv2D(32, 3, padding=1, activation="relu"), nn.Flatten(), nn.Dense(10),
)  # fmt: skip
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

run = dynamix.attach(net, trainer, loader)  # 2


def correct(logits, targets):
    return (logits.argmax(1).astype(np.int64) == targets).sum()


def score(inputs, targets):
    """Sums over a batch: correct predictions, and losses."""
    logits = net(inputs)
    return {"accuracy": correct(logits, targets), "loss": cross_entropy(logits, targets).sum()}


for inputs, targets in run.batches(epochs=8):  # 3, in place of the loops over epochs and loader
    with autograd.record():
        logits = net(inputs)
        loss = cross_entropy(logits, targets).mean()
    run.backward(loss, correct=correct(logits, targets))  # 4, in place of loss.backward()
    trainer.step(1)  # 5, the gradient is the mean over all workers already

result = run.evaluate(test_set, score)  # 6, every worker takes a part of the test set
if run.rank == 0:
    print(f"test accuracy {result['accuracy']:.1%}, test loss {result['loss']:.3f}")
run.close()  # 7
