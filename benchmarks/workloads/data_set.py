"""A data set of the workloads, for every framework: arrays to train on, arrays to test on, and where they come from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs and labels, a row per sample.

    Of images, inputs are float32 (samples, channels, height, width) with mean 0 and deviation 1, and labels are int64
    (samples,). Of a text, both are int64 (samples, bytes), and a label is the byte that follows.

    The samples keep `source` and `degraded`, so that a run records what it really trains on. Each framework wraps
    them in its own kind of data set (torch_samples.py, mxnet_images.py).
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    source: str
    degraded: str | None

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, number: int | None) -> Samples:
        """So many of them; None: all."""
        return dataclasses.replace(self, inputs=self.inputs[:number], labels=self.labels[:number])


@dataclass(frozen=True, slots=True)
class DataSet:
    """A training and a test set. `degraded` says why this is not the requested data set."""

    name: str
    source: str
    train: Samples
    test: Samples
    degraded: str | None = None
    classes: int = 10

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: channels, height, width of an image; the number of bytes of a text."""
        return self.train.inputs.shape[1:]

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Tokens of every training sample of a text; none for images."""
        labels = self.train.labels
        return None if labels.ndim == 1 else np.full(len(labels), labels.shape[1])
