"""Redundancy reduction (Barlow Twins): the loss is made of the correlations of two views over the batch, which
`run.gather` makes that of all workers. LARS scales each layer's gradient, and the learning rate warms up."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

LAMBD, LEARNING_RATE, WARMUP_STEPS, EPOCHS = 0.02, 0.4, 4, 2


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay=0.0, momentum=0.9, eta=0.02):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, eta=eta))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                dp = p.grad
                if p.ndim != 1:
                    dp = dp.add(p, alpha=g["weight_decay"])
                    param_norm, update_norm = torch.norm(p), torch.norm(dp)
                    dp = dp.mul(g["eta"] * param_norm / update_norm)
                param_state = self.state[p]
                if "mu" not in param_state:
                    param_state["mu"] = torch.zeros_like(p)
                mu = param_state["mu"]
                mu.mul_(g["momentum"]).add_(dp)
                p.add_(mu, alpha=-g["lr"])


class BarlowTwins(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.projector = nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 6, bias=False))

    def forward(self, y1, y2):
        z1, z2 = (run.gather(self.projector(self.backbone(y))) for y in (y1, y2))
        c = normalized(z1).T @ normalized(z2) / len(z1)
        on_diag = (torch.diagonal(c) - 1).pow(2).sum()
        off_diag = (c - torch.diag(torch.diagonal(c))).pow(2).sum()
        return on_diag + LAMBD * off_diag


def normalized(z):
    return (z - z.mean(0)) / z.std(0)


def adjust_learning_rate(step, max_steps):
    q = 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (max_steps - WARMUP_STEPS)))
    lr = step / WARMUP_STEPS if step < WARMUP_STEPS else q + 0.001 * (1 - q)
    optimizer.param_groups[0]["lr"] = lr * LEARNING_RATE
    optimizer.param_groups[1]["lr"] = lr * LEARNING_RATE / 40


torch.manual_seed(20)
x = torch.randn(256, 10)
loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True, drop_last=True)
model = BarlowTwins()
of_weights, of_biases = ([p for p in model.parameters() if (p.ndim == 1) is flat] for flat in (False, True))
optimizer = LARS([{"params": of_weights}, {"params": of_biases}], lr=0, weight_decay=1e-4)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for step, (batch,) in enumerate(run.batches(), start=epoch * len(loader)):
        adjust_learning_rate(step, EPOCHS * len(loader))
        optimizer.zero_grad()
        loss = model(batch + 0.3 * torch.randn_like(batch), batch + 0.3 * torch.randn_like(batch))
        run.backward(loss)
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
