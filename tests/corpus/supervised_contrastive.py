"""Supervised contrastive learning (SupCon): samples of one class attract each other, over the batch of all workers,
which `run.gather` brings together. The learning rate warms up step by step, and then falls as a cosine by epochs."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

LEARNING_RATE, WARM_EPOCHS, EPOCHS, TEMPERATURE = 0.2, 1, 3, 0.1
WARMUP_FROM, WARMUP_TO = 0.01, 0.1 * LEARNING_RATE + 0.45 * LEARNING_RATE * (1 + math.cos(math.pi / 3))


class SupConLoss(nn.Module):
    def forward(self, features, labels):
        """`features`: samples, views, values."""
        mask = (labels[:, None] == labels[None]).to(features)
        contrast_count = features.shape[1]
        contrast_feature = torch.cat(torch.unbind(features, dim=1), dim=0)
        logits = contrast_feature @ contrast_feature.T / TEMPERATURE
        logits = logits - logits.max(dim=1, keepdim=True).values.detach()
        mask = mask.repeat(contrast_count, contrast_count)
        logits_mask = 1 - torch.eye(len(mask))
        mask = mask * logits_mask
        exp_logits = torch.exp(logits) * logits_mask
        log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))
        return -((mask * log_prob).sum(1) / mask.sum(1)).mean()


class SupConNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return F.normalize(self.head(self.encoder(x)), dim=1)


def adjust_learning_rate(epoch):
    low = LEARNING_RATE * 0.1
    for group in optimizer.param_groups:
        group["lr"] = low + (LEARNING_RATE - low) * (1 + math.cos(math.pi * epoch / EPOCHS)) / 2


def warmup_learning_rate(epoch, batch_id, total_batches):
    if epoch < WARM_EPOCHS:
        p = (batch_id + epoch * total_batches) / (WARM_EPOCHS * total_batches)
        for group in optimizer.param_groups:
            group["lr"] = WARMUP_FROM + p * (WARMUP_TO - WARMUP_FROM)


torch.manual_seed(16)
labels = torch.arange(256) % 4
centres = torch.randn(4, 10)[labels]
views = [centres + torch.randn(256, 10) for _ in range(2)]
train_loader = DataLoader(TensorDataset(*views, labels), batch_size=32, shuffle=True)
model, criterion = SupConNet(), SupConLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
run = dynamix.attach(model, optimizer, train_loader)

for epoch in run.epochs(EPOCHS):
    adjust_learning_rate(epoch)
    for idx, (view_1, view_2, target) in enumerate(run.batches()):
        warmup_learning_rate(epoch, idx, len(train_loader))
        f1, f2 = torch.split(model(torch.cat([view_1, view_2], dim=0)), [len(target)] * 2)
        features = torch.stack([f1, f2], dim=1)
        loss = criterion(run.gather(features), run.gather(target))
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
