"""What all train in the study of membership: eight layers, 37 MB, on made-up samples."""

from __future__ import annotations

from collections.abc import Callable

import torch

WIDTH, LAYERS = 1075, 8  # 9.25 million numbers of four bytes: 37 MB
SAMPLES = 512
RATE = 0.01


class Net(torch.nn.ModuleList):
    """Eight linear layers, each with a ReLU.

    Attributes:
        in_backward: called in the middle of the backward pass that follows: some gradients are there, others are not.
    """

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.in_backward: Callable[[torch.Tensor], None] | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The outputs of the last layer, one row of WIDTH numbers per sample."""
        for number, layer in enumerate(self):
            values = torch.relu(layer(values))
            if self.in_backward is not None and number == LAYERS // 2:
                values.register_hook(self.in_backward)  # type: ignore[no-untyped-call]
        return values


def training() -> tuple[Net, torch.optim.Optimizer, torch.utils.data.TensorDataset]:
    """The model, its optimizer and the samples, the same in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    samples = torch.utils.data.TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(0, WIDTH, (SAMPLES,)))
    return net, torch.optim.SGD(net.parameters(), lr=RATE), samples
