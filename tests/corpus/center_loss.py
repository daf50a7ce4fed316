"""Center loss beside cross entropy: a loss with weights of its own and an optimizer of its own, whose gradients the
script scales before the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

CLASSES, FEATURES, WEIGHT_CENT, EPOCHS = 4, 2, 0.5, 2


class CenterLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(CLASSES, FEATURES))

    def forward(self, x, labels):
        batch_size = x.size(0)
        distmat = x.pow(2).sum(dim=1, keepdim=True) + self.centers.pow(2).sum(dim=1, keepdim=True).t()
        distmat = distmat - 2 * x @ self.centers.t()
        mask = labels[:, None] == torch.arange(CLASSES)
        dist = distmat * mask
        return dist.clamp(min=1e-12, max=1e12).sum() / batch_size


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.prelu = nn.Conv2d(1, 4, 3), nn.PReLU()
        self.fc1, self.fc2 = nn.Linear(4 * 16, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        x = self.fc1(self.prelu(self.conv(x)).flatten(1))
        return x, self.fc2(x)


torch.manual_seed(14)
labels = torch.arange(256) % CLASSES
images = torch.randn(CLASSES, 1, 6, 6)[labels] + torch.randn(256, 1, 6, 6)
trainloader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
model = ConvNet()
criterion_xent, criterion_cent = nn.CrossEntropyLoss(), CenterLoss()
optimizer_model = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=5e-4, momentum=0.9)
optimizer_centloss = torch.optim.SGD(criterion_cent.parameters(), lr=0.5)
run = dynamix.attach(model, [optimizer_model, optimizer_centloss], trainloader)

for epoch in run.epochs(EPOCHS):
    for data, target in run.batches():
        features, outputs = model(data)
        loss_cent = criterion_cent(features, target) * WEIGHT_CENT
        loss = criterion_xent(outputs, target) + loss_cent
        optimizer_model.zero_grad()
        optimizer_centloss.zero_grad()
        run.backward(loss)
        optimizer_model.step()
        for param in criterion_cent.parameters():
            param.grad.data *= 1.0 / WEIGHT_CENT
        optimizer_centloss.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}, of centers {loss_cent.item():.4f}")
