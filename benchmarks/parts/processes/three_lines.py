"""A script with three lines of ours, whose second worker is ten times as slow: `torchrun --nproc-per-node 2 ...`.

It ends after the first pass over the data with a plan that changes the sizes. It imports nothing of the benchmarks.
"""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

torch.manual_seed(0)
inputs = torch.randn(2048, 64)
targets = (inputs @ torch.randn(64, 10)).argmax(1)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = dynamix.attach(model, optimizer, loader)

first = last = run.planned_sizes
while last == first:  # as of the last batch, which is the same on all workers
    for some, labels in run.loader:
        last = run.planned_sizes
        time.sleep(len(some) * (1e-3 if run.rank == 1 else 1e-4))  # the machine that is slow
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(some), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
run.close()
