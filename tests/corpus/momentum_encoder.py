"""Self-supervised learning without negatives (BYOL): a predictor learns what a target network finds in another view.
The target has batch norm, no gradient, and weights that follow those of the online network."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

MOMENTUM, EPOCHS = 0.9, 2


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, outputs))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten())
        self.projector = mlp(4 * 10, 8)

    def forward(self, x):
        return self.projector(self.encoder(x[:, None]))


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.predictor = Encoder(), mlp(8, 8)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    @torch.no_grad()
    def update_moving_average(self):
        for p, ema in zip(self.online.parameters(), self.target.parameters()):
            ema.data = MOMENTUM * ema.data + (1 - MOMENTUM) * p.data

    def forward(self, view_1, view_2):
        predictions = self.predictor(self.online(view_1)), self.predictor(self.online(view_2))
        with torch.no_grad():
            targets = self.target(view_1), self.target(view_2)
        return (regression_loss(predictions[0], targets[1]) + regression_loss(predictions[1], targets[0])).mean()


def regression_loss(x, y):
    return 2 - 2 * (F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(dim=-1)


torch.manual_seed(18)
series = torch.randn(256, 10).cumsum(1)
loader = DataLoader(TensorDataset(series), batch_size=32, shuffle=True)
learner = BYOL()
optimizer = torch.optim.Adam([p for p in learner.parameters() if p.requires_grad], lr=3e-3)
run = dynamix.attach(learner, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for (x,) in run.batches():
        loss = learner(x + 0.1 * torch.randn_like(x), x * (1 + 0.1 * torch.randn_like(x)))
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
        learner.update_moving_average()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
