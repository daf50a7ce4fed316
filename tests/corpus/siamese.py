"""Siamese network: a sample is a pair of images, and the margin loss is a mean over the pairs of the batch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

CLASSES, EPOCHS = 5, 2


class Pairs(Dataset):
    """Every second pair is of one class. Which images a pair has, its number decides."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.groups = [torch.nonzero(labels == label).flatten() for label in range(CLASSES)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        same, label = index % 2, int(self.labels[index])
        group = self.groups[label if same else (label + 1 + index // 2 % (CLASSES - 1)) % CLASSES]
        return self.images[index], self.images[group[index * 7 % len(group)]], float(same)


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()
        )
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(8 * 9, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))

    def forward_once(self, x):
        return self.fc(self.cnn(x))

    def forward(self, input1, input2):
        return self.forward_once(input1), self.forward_once(input2)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, output1, output2, same):
        distance = F.pairwise_distance(output1, output2)
        apart = torch.clamp(self.margin - distance, min=0.0)
        return torch.mean(same * distance.pow(2) + (1 - same) * apart.pow(2))


torch.manual_seed(3)
centres, labels = torch.randn(CLASSES, 1, 6, 6), torch.arange(256) % CLASSES
pairs = Pairs(centres[labels] + 0.5 * torch.randn(256, 1, 6, 6), labels)
model = SiameseNetwork()
criterion = ContrastiveLoss()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
run = dynamix.attach(model, optimizer, DataLoader(pairs, shuffle=True, batch_size=32))
run.register(scheduler=scheduler)

for epoch in run.epochs(EPOCHS):
    model.train()
    for batch_idx, (images_1, images_2, same) in enumerate(run.batches()):
        optimizer.zero_grad()
        outputs = model(images_1, images_2)
        loss = criterion(*outputs, same.to(outputs[0]))
        run.backward(loss)
        optimizer.step()
        if batch_idx % 4 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}]\tLoss: {loss.item():.6f}")
    scheduler.step()
