"""A small network on handwritten digits that come in tar files, with torch. A number marks each changed line.

    dynamix launch -c examples/cluster.yaml -- python examples/torch_shards.py

Every worker reads some of the files; a fast worker reads more of them. The files are written first, named as WebDataset
names them: `0007.npy` and `0007.cls` are the picture and the class of one sample.
"""

import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import dynamix_ps.torch as dynamix  # 1

EPOCHS, PER_SHARD = 8, 50


def write_shards(folder: Path, images: np.ndarray, labels: np.ndarray) -> list[Path]:
    """Tar files of PER_SHARD samples each."""
    files = []
    for begin in range(0, len(labels), PER_SHARD):
        files.append(folder / f"digits-{begin:05}.tar")
        with tarfile.open(files[-1], "w") as tar:
            for number in range(begin, min(begin + PER_SHARD, len(labels))):
                picture = io.BytesIO()
                np.save(picture, images[number])
                add(tar, f"{number:04}.npy", picture.getvalue())
                add(tar, f"{number:04}.cls", str(labels[number]).encode())
    return files


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def samples_of(file: Path) -> Iterator[tuple[torch.Tensor, int]]:
    """The samples of one tar file, in its order."""
    with tarfile.open(file) as tar:
        while (picture := tar.next()) and (label := tar.next()):
            pixels = np.load(io.BytesIO(tar.extractfile(picture).read()))
            yield torch.tensor(pixels, dtype=torch.float32) / 16, int(tar.extractfile(label).read())


images, labels = load_digits(return_X_y=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with tempfile.TemporaryDirectory() as folder:
    files = write_shards(Path(folder), images[:1500], labels[:1500])
    run = dynamix.attach(model, optimizer, dynamix.shards(files, samples_of))  # 2
    for epoch in run.epochs(EPOCHS):  # 3, in place of range(EPOCHS)
        for inputs, targets in run.batches():  # 4, in place of a loader
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            run.backward(loss)  # 5, in place of loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss of the last batch {loss:.3f}")

with torch.no_grad():
    found = model(torch.tensor(images[1500:], dtype=torch.float32) / 16).argmax(1)
print(f"test accuracy {(found.numpy() == labels[1500:]).mean():.1%}")
