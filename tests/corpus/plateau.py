"""Image classifier in the shape of the ImageNet example: residual blocks, and a learning rate that falls when the loss
on the validation set stays. All workers compute this loss together."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

CLASSES, EPOCHS = 4, 6


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.downsample(x))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def score(images, target):
    output = model(images)
    return {"accuracy": (output.argmax(1) == target).sum(), "loss": F.cross_entropy(output, target, reduction="sum")}


torch.manual_seed(5)
labels = torch.arange(320) % CLASSES
images = torch.randn(CLASSES, 3, 6, 6)[labels] + 2 * torch.randn(320, 3, 6, 6)
train_set, val_set = TensorDataset(images[:256], labels[:256]), TensorDataset(images[256:], labels[256:])
model = nn.Sequential(BasicBlock(3, 4), BasicBlock(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=1e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
run = dynamix.attach(model, optimizer, DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True))
run.register(scheduler=scheduler)

for epoch in run.epochs(EPOCHS):
    model.train()
    losses = AverageMeter()
    for images, target in run.batches():
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), len(images))
        optimizer.zero_grad()
        run.backward(loss, correct=(output.argmax(1) == target).sum())
        optimizer.step()
    model.eval()
    result = run.evaluate(DataLoader(val_set, batch_size=32), score)
    scheduler.step(result["loss"])
    print(f"Epoch {epoch}: loss {losses.avg:.3f}, Acc@1 {result['accuracy']:.3f}, lr {scheduler.get_last_lr()}")
