"""Images for torch."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from benchmarks.workloads.data import Images


class ImageSet(TensorDataset):
    """Images and labels as tensors; shares the memory of the arrays."""

    def __init__(self, images: Images) -> None:
        super().__init__(torch.from_numpy(images.inputs), torch.from_numpy(images.labels))
        self.source, self.degraded = images.source, images.degraded
