"""Images in accelerate."""

import torch
from torch.nn.functional import cross_entropy

from benchmarks.workloads.frameworks.shared import arguments, loaders, net
from dynamix_ps.integrations.accelerate import Accelerator

args = arguments(__doc__, epochs=4)
accelerator = Accelerator(cpu=True)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, train, test = accelerator.prepare(model, optimizer, *loaders(args.images, args.samples))

for _ in range(args.epochs):
    model.train()
    for inputs, targets in train:
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    right, counted = 0, 0
    for inputs, targets in test:
        with torch.no_grad():
            found = accelerator.gather_for_metrics((model(inputs).argmax(1), targets))
        right, counted = right + int((found[0] == found[1]).sum()), counted + len(found[1])
    if run := accelerator.run:
        run.record({"accuracy": right / counted})
