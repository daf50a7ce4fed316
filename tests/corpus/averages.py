"""Weights averaged twice: an exponential average after each step, and stochastic weight averaging with its own learning
rate in the last epochs, whose batch norm is computed anew at the end."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

EPOCHS, SWA_START = 5, 3


@torch.no_grad()
def accuracy(network):
    network.eval()
    hits = sum(int((network(x).argmax(1) == y).sum()) for x, y in test_loader)
    return hits / len(test_loader.dataset)


torch.manual_seed(2)
labels = torch.randint(0, 3, (288,))
inputs = torch.randn(3, 8)[labels] + torch.randn(288, 8)
train_set, test_set = TensorDataset(inputs[:224], labels[:224]), TensorDataset(inputs[224:], labels[224:])
train_loader, test_loader = DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(test_set, batch_size=64)
model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
run = dynamix.attach(model, optimizer, train_loader)

ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
swa_model = AveragedModel(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)

for epoch in run.epochs(EPOCHS):
    model.train()
    for inputs, targets in run.batches():
        optimizer.zero_grad()
        run.backward(loss_fn(model(inputs), targets))
        optimizer.step()
        ema_model.update_parameters(model)
    if epoch >= SWA_START:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    print(f"epoch {epoch}: accuracy {accuracy(model):.3f}, of the average {accuracy(ema_model):.3f}")

update_bn(DataLoader(train_set, batch_size=32), swa_model)
print(f"accuracy of SWA {accuracy(swa_model):.3f}")
