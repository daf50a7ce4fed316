"""Contrastive learning in the shape of SimCLR: two views of each image, and a loss that compares every view with all
others of the batch. `run.gather` brings the features of all workers together."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

TEMPERATURE, EPOCHS = 0.5, 3


class TwoViews(Dataset):
    """Views are the image with noise that its number decides."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        noise = torch.randn(2, *self.images[index].shape, generator=torch.Generator().manual_seed(index))
        return self.images[index] + 0.3 * noise[0], self.images[index].flip(-1) + 0.3 * noise[1]


class ResNetSimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
        )
        self.projection = nn.Sequential(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.projection(self.backbone(x))


def info_nce_loss(features, n_views=2):
    labels = torch.cat([torch.arange(len(features) // n_views)] * n_views)
    labels = labels[None] == labels[:, None]
    features = F.normalize(features, dim=1)
    similarity_matrix = features @ features.T
    mask = torch.eye(len(labels), dtype=torch.bool)  # the main diagonal goes
    labels = labels[~mask].view(len(labels), -1)
    similarity_matrix = similarity_matrix[~mask].view(len(labels), -1)
    positives = similarity_matrix[labels].view(len(labels), -1)
    negatives = similarity_matrix[~labels].view(len(labels), -1)
    logits = torch.cat([positives, negatives], dim=1) / TEMPERATURE
    return logits, torch.zeros(len(logits), dtype=torch.long)


torch.manual_seed(17)
dataset = TwoViews(torch.randn(224, 1, 6, 6))
train_loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
model = ResNetSimCLR()
optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
criterion = nn.CrossEntropyLoss()
run = dynamix.attach(model, optimizer, train_loader)

for epoch in run.epochs(EPOCHS):
    for views in run.batches():
        features = model(torch.cat(views, dim=0)).chunk(2)
        features = torch.cat([run.gather(one) for one in features])
        logits, labels = info_nce_loss(features)
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
    scheduler.step()
    print(f"Epoch: {epoch}\tLoss: {loss:.4f}\tTop1 accuracy: {(logits.argmax(1) == 0).double().mean():.2f}")
