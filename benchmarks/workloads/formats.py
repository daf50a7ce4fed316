"""Readers of data set files: npz, IDX (MNIST family) and CIFAR-10's pickled batches. All give NHWC uint8."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import DataError

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Shape = tuple[int, int, int]  # height, width, channels of one sample
T = TypeVar("T")

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_DAMAGE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, tarfile.TarError)


@dataclass(frozen=True, slots=True)
class RawImages:
    """Images as stored: uint8 (samples, height, width, channels), labels int64 (samples,)."""

    x_train: Pixels
    y_train: Labels
    x_test: Pixels
    y_test: Labels


def read_npz(path: Path, sample_shape: Shape) -> RawImages:
    """Arrays x_train, y_train, x_test, y_test; pixels uint8. Raises DataError if damaged or of another shape."""

    def read() -> RawImages:
        with np.load(path, allow_pickle=False) as arrays:
            return _checked(arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], sample_shape)

    return _read(path, "a whole .npz with uint8 x_train, y_train, x_test, y_test", read)


def read_idx(folder: Path, sample_shape: Shape) -> RawImages:
    """The four gzipped IDX files of the MNIST family. Raises DataError that names a damaged one."""
    x_train, y_train, x_test, y_test = (
        _read(folder / name, "a whole gzipped IDX file", partial(_idx, folder / name)) for name in IDX_FILES
    )
    expected = "images and labels that belong together"
    return _read(folder, expected, lambda: _checked(x_train, y_train, x_test, y_test, sample_shape))


def read_cifar_archive(path: Path, sample_shape: Shape) -> RawImages:
    """`cifar-10-python.tar.gz`, read without unpacking it and without running code from its pickles."""

    def read() -> RawImages:
        batches = {}
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in (*_CIFAR_TRAIN, "test_batch"):
                    file = archive.extractfile(member)
                    assert file is not None  # it is a regular file
                    batches[name] = _cifar_batch(file.read(), sample_shape)
        missing = [name for name in (*_CIFAR_TRAIN, "test_batch") if name not in batches]
        if missing:
            raise ValueError(f"without {', '.join(missing)}")
        x_train = np.concatenate([batches[name][0] for name in _CIFAR_TRAIN])
        y_train = np.concatenate([batches[name][1] for name in _CIFAR_TRAIN])
        return _checked(x_train, y_train, *batches["test_batch"], sample_shape)

    return _read(path, "a whole .tar.gz with CIFAR-10's data_batch_1 to 5 and test_batch", read)


def _read(path: Path, expected: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (*_DAMAGE, pickle.UnpicklingError) as error:
        size = f"{path.stat().st_size:,} bytes, " if path.is_file() else ""
        raise DataError(
            f"data file {path} cannot be used: got {size}{type(error).__name__}: {error}; expected {expected}; "
            "delete it or put a good copy in its place"
        ) from error


def _checked(x_train: Any, y_train: Any, x_test: Any, y_test: Any, sample_shape: Shape) -> RawImages:
    return RawImages(*_part("train", x_train, y_train, sample_shape), *_part("test", x_test, y_test, sample_shape))


def _part(name: str, pixels: Any, labels: Any, sample_shape: Shape) -> tuple[Pixels, Labels]:
    if pixels.ndim == 3:  # IDX: no dimension for the single channel
        pixels = pixels[..., np.newaxis]
    if pixels.dtype != np.uint8 or pixels.shape[1:] != sample_shape or not len(pixels):
        raise ValueError(f"x_{name} is {pixels.dtype} {pixels.shape}, not uint8 (samples, {sample_shape})")
    if labels.shape != (len(pixels),):
        raise ValueError(f"{len(pixels)} images in x_{name}, but y_{name} has shape {labels.shape}")
    if labels.min() < 0 or labels.max() > 9:
        raise ValueError(f"labels in y_{name} from {labels.min()} to {labels.max()}, not 0 to 9")
    return pixels, labels.astype(np.int64)


def _idx(path: Path) -> NDArray[np.uint8]:
    with gzip.open(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"starts with {content[:4]!r}, not with IDX's mark for unsigned bytes")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], dtype=">u4"))
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _cifar_batch(content: bytes, sample_shape: Shape) -> tuple[Pixels, Labels]:
    height, width, channels = sample_shape
    batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict) or not isinstance(batch.get(b"data"), np.ndarray):
        raise ValueError("a batch is not a dictionary with an array under 'data'")
    planes = batch[b"data"].reshape(-1, channels, height, width)
    return planes.transpose(0, 2, 3, 1), np.asarray(batch[b"labels"], dtype=np.int64)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Rebuilds bytes in protocol-2 pickles of Python 3."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed in a data file")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Allows only the four names that a numeric array needs, because a pickle could otherwise run any program."""

    _RECONSTRUCT = np.empty(0).__reduce__()[0]
    _ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused in a data file") from None
