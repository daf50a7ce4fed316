"""Gradient surgery (PCGrad) for two tasks: each task has a forward and a backward pass of its own, a gradient that
conflicts with that of the other task loses the part along it, and the script puts the sum into `.grad`. What the losses
are weighted by is learned, too."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

EPOCHS = 2


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.depth, self.classes = nn.Linear(8, 1), nn.Linear(8, 3)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.depth(h).squeeze(1), self.classes(h)


class PCGrad:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def pc_backward(self, objectives):
        grads = []
        for objective in objectives:
            self.optimizer.zero_grad(set_to_none=True)
            run.backward(objective())
            grads.append([p.grad for p in self.parameters])
        flat = [torch.cat([self.zeros_if_none(*one).flatten() for one in zip(self.parameters, g)]) for g in grads]
        projected = [g.clone() for g in flat]
        for g_i in projected:
            for g_j in random.sample(flat, len(flat)):
                dot = g_i @ g_j
                if dot < 0:
                    g_i -= dot * g_j / g_j.norm() ** 2
        merged = sum(projected).split([p.numel() for p in self.parameters])
        for p, g in zip(self.parameters, merged):
            p.grad = g.view_as(p)

    @staticmethod
    def zeros_if_none(p, grad):
        return torch.zeros_like(p) if grad is None else grad

    def step(self):
        self.optimizer.step()


def weighted(loss, log_var):
    return torch.exp(-log_var) * loss + log_var


random.seed(0)
torch.manual_seed(4)
x = torch.randn(256, 8)
data = TensorDataset(x, x[:, :3].sum(1).sin(), x[:, 2:5].argmax(1))
model = MultiTask()
adam = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = PCGrad(adam)
run = dynamix.attach(model, adam, DataLoader(data, batch_size=32, shuffle=True))

for epoch in run.epochs(EPOCHS):
    for inputs, depth, label in run.batches():
        tasks = [
            lambda: weighted(F.l1_loss(model(inputs)[0], depth), model.log_vars[0]),
            lambda: weighted(F.cross_entropy(model(inputs)[1], label), model.log_vars[1]),
        ]
        optimizer.pc_backward(tasks)
        optimizer.step()
    print(f"epoch {epoch}: " + ", ".join(f"{task().item():.3f}" for task in tasks))
