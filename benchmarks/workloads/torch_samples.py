"""Samples for torch."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from benchmarks.workloads.data_set import Samples


class SampleSet(TensorDataset):
    """Inputs and labels as tensors; shares the memory of the arrays."""

    def __init__(self, samples: Samples) -> None:
        super().__init__(torch.from_numpy(samples.inputs), torch.from_numpy(samples.labels))
        self.source, self.degraded = samples.source, samples.degraded
