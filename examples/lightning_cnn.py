"""A convolutional network on handwritten digits, with Lightning. A number marks each line that DYNAMIX needs.

    dynamix launch -c examples/cluster.yaml -- python examples/lightning_cnn.py

Started with plain `python`, it is ordinary training in one process.
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dynamix_ps.integrations.lightning import DynamixStrategy  # 1

images, labels = load_digits(return_X_y=True)
inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
targets = torch.tensor(labels)
train_set = TensorDataset(inputs[:1500], targets[:1500])
test_set = TensorDataset(inputs[1500:], targets[1500:])


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return cross_entropy(self.layers(inputs), targets)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("accuracy", (self.layers(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


pl.seed_everything(0)
trainer = pl.Trainer(
    max_epochs=8,
    strategy=DynamixStrategy(),  # 2
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Digits(), DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(test_set, batch_size=256))
if trainer.is_global_zero:
    print(f"test accuracy {trainer.callback_metrics['accuracy']:.1%}")
