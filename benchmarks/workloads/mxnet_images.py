"""Images for MXNet."""

from __future__ import annotations

from mxnet.gluon.data import ArrayDataset

from benchmarks.workloads.data_set import Samples


class ImageSet(ArrayDataset):  # type: ignore[misc]
    """Images and labels; shares the memory of the arrays."""

    def __init__(self, images: Samples) -> None:
        super().__init__(images.inputs, images.labels)
        self.source, self.degraded = images.source, images.degraded
