"""Images in Lightning."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch.nn.functional import cross_entropy

from benchmarks.workloads.frameworks.shared import arguments, loaders, net
from dynamix_ps.integrations.lightning import DynamixStrategy


class Images(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return cross_entropy(self.net(inputs), targets)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_accuracy", (self.net(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


args = arguments(__doc__, epochs=4)
trainer = pl.Trainer(
    max_epochs=args.epochs,
    strategy=DynamixStrategy(),
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Images(), *loaders(args.images, args.samples))
