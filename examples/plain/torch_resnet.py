"""The script that examples/torch_resnet.py was before: ordinary training in one process."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, SHIFT = 10, 1


class Digits(Dataset):
    """Pictures of 8 x 8 pixels, each moved by up to `shift` pixels in both directions."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, shift: int = 0) -> None:
        self.images, self.labels, self.shift = images, labels, shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        padded = nn.functional.pad(self.images[number], (self.shift,) * 4)
        left, top = torch.randint(0, 2 * self.shift + 1, (2,))
        return padded[:, top : top + 8, left : left + 8], self.labels[number]


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(convolution(channels, channels), nn.ReLU(), convolution(channels, channels))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(inputs + self.layers(inputs))


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(4, outputs))


images, labels = load_digits(return_X_y=True)
images, labels = torch.Tensor(images).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
generator = torch.Generator().manual_seed(1)
train_set = Digits(images[:1440], labels[:1440], SHIFT)
train_loader = DataLoader(train_set, batch_size=48, shuffle=True, num_workers=2, generator=generator)
test_loader = DataLoader(Digits(images[1440:], labels[1440:]), batch_size=128)

torch.manual_seed(0)
model = nn.Sequential(
    convolution(1, 16), nn.ReLU(), Block(16), convolution(16, 32, 2), nn.ReLU(), Block(32),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
)  # fmt: skip
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)

for epoch in range(EPOCHS):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    print(f"epoch {epoch}: loss of the last batch {loss:.3f}")

model.eval()
with torch.no_grad():
    correct = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in test_loader)
print(f"test accuracy {correct / len(test_loader.dataset):.1%}")
