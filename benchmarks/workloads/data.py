"""Data sets for the workloads: images found on disk, downloaded, or replaced by small digits, and a text (text.py).

Search order of images: the given path; $DYNAMIX_DATA; <cache>/data; the data set's home page (kept in <cache>/data,
checked); as a last resort scikit-learn's bundled digits. The digits are not the requested data set, so stderr and
`DataSet.degraded` say so. A damaged file is an error, never a reason to try the next place. A whole file with another
sha256 than the published one is used, as somebody has put it there, but stderr and `DataSet.degraded` say so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import text
from benchmarks.workloads.data_set import DataSet, Samples
from benchmarks.workloads.download import RemoteFile, fetch, sha256_of
from benchmarks.workloads.formats import IDX_FILES, RawImages, read_cifar_archive, read_idx, read_npz
from dynamix_ps.config import variables
from dynamix_ps.errors import DataError, UsageError

_FASHION_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_CIFAR_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


@dataclass(frozen=True, slots=True)
class _Known:
    """A known data set: its shape, statistics of the training pixels / 255, files and home page."""

    title: str
    shape: tuple[int, int, int]  # height, width, channels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    npz_sha256: dict[str, str | None]  # by file name; None where packings differ
    remote: tuple[RemoteFile, ...]
    read_originals: Callable[[Path, tuple[int, int, int]], RawImages]

    @property
    def sha256(self) -> dict[str, str | None]:
        """By file name."""
        return self.npz_sha256 | {file.name: file.sha256 for file in self.remote}


_KNOWN = {
    "fashion-mnist": _Known(
        "Fashion-MNIST",
        (28, 28, 1),
        (0.2860,),
        (0.3530,),
        {"fashion_mnist.npz": "8e5dfa81fd15830d682abf780747d99424248104d2c25f271820422b1237663a"},
        tuple(RemoteFile(_FASHION_HOME + name, sum_) for name, sum_ in zip(IDX_FILES, _FASHION_SHA256, strict=True)),
        read_idx,
    ),
    "cifar-10": _Known(
        "CIFAR-10",
        (32, 32, 3),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        {
            "cifar10.npz": None,
            "cifar10_25k.npz": "bd28aec46c406bec7982a3aaa71aeaf93667f08c128fac18a105240aadbf6709",
        },
        (RemoteFile(_CIFAR_URL, _CIFAR_SHA256),),
        lambda folder, shape: read_cifar_archive(folder / "cifar-10-python.tar.gz", shape),
    ),
}
TEXT = "text"
IMAGES = (*_KNOWN, "digits")
NAMES = (*IMAGES, TEXT)


def load(name: str, path: Path | None = None) -> DataSet:
    """Load a data set by name. With `path`, a file or folder, no other place is searched.

    Raises UsageError for an unknown name, and DataError for a missing `path`, for a damaged file, or if not even the
    bundled digits are available.
    """
    if name == TEXT:
        return text.load(path)
    if name == "digits":
        return _digits((28, 28, 1), "scikit-learn's digits", shifts=0)
    known = _KNOWN.get(name)
    if known is None:
        raise UsageError(f"unknown data set {name!r}; known data sets: {', '.join(NAMES)}")
    if path is not None:
        found = _at(known, path)
        if found is None:
            raise DataError(f"{known.title} is not at {path}: expected {_expected(known)}; correct the path")
        return _data_set(known, *found)
    cache = Path(variables.cache_dir()) / "data"
    given = variables.get(variables.DATA)
    places = [*([Path(given)] if given else []), cache]
    for place in places:
        found = _at(known, place)
        if found is not None:
            return _data_set(known, *found)
    try:
        fetch(known.remote, cache)
    except DataError as error:
        return _stand_in(known, places, error)
    return _data_set(known, known.read_originals(cache, known.shape), str(cache))


def _at(known: _Known, path: Path) -> tuple[RawImages, str, str | None] | None:
    """The data set's arrays, their source and why it is degraded; or None if they are not at `path`."""
    if path.is_file():
        if path.suffix == ".npz":
            return _npz(known, path)
        named_so = path.name in [file.name for file in known.remote]
        return _originals(known, path.parent, str(path)) if named_so else None
    for name in known.npz_sha256:
        if (path / name).is_file():
            return _npz(known, path / name)
    originals = [path / file.name for file in known.remote]
    if not any(file.is_file() for file in originals):
        return None
    missing = [file.name for file in originals if not file.is_file()]
    if missing:
        raise DataError(f"{path}: {known.title} is there in part; missing: {', '.join(missing)}; add what is missing")
    return _originals(known, path, str(path))


def _npz(known: _Known, file: Path) -> tuple[RawImages, str, str | None]:
    return read_npz(file, known.shape), str(file), _deviation(known, [file])


def _originals(known: _Known, folder: Path, source: str) -> tuple[RawImages, str, str | None]:
    raw = known.read_originals(folder, known.shape)
    return raw, source, _deviation(known, [folder / file.name for file in known.remote])


def _deviation(known: _Known, files: Iterable[Path]) -> str | None:
    """Which file is not the published one, said on stderr; None where all are, or nobody knows."""
    for file in files:
        expected = known.sha256.get(file.name)
        if expected is not None and (got := sha256_of(file)) != expected:
            return _say_degraded(
                f"{file} is not the published {known.title}: got sha256 {got}, expected {expected}; "
                "training on it all the same; put the published file in its place"
            )
    return None


def _say_degraded(reason: str) -> str:
    print(f"degraded: data: {reason}", file=sys.stderr, flush=True)
    return reason


def _expected(known: _Known) -> str:
    return " or ".join((*known.npz_sha256, " + ".join(file.name for file in known.remote)))


def _data_set(known: _Known, raw: RawImages, where: str, degraded: str | None = None) -> DataSet:
    samples = f"{len(raw.x_train):,} training and {len(raw.x_test):,} test images"
    subset = ", a subset" if known.title == "CIFAR-10" and len(raw.x_train) < 50_000 else ""
    source = f"{known.title} from {where} ({samples}{subset})"
    parts = [
        Samples(_normalised(pixels, known.mean, known.std), labels, source, degraded)
        for pixels, labels in ((raw.x_train, raw.y_train), (raw.x_test, raw.y_test))
    ]
    return DataSet(known.title, source, parts[0], parts[1], degraded)


def _normalised(pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """NHWC uint8 to NCHW float32, changed in place after the one copy it needs."""
    planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):
        planes[:, channel] -= np.float32(255 * centre)
        planes[:, channel] /= np.float32(255 * spread)
    return planes


def _stand_in(known: _Known, places: list[Path], error: DataError) -> DataSet:
    searched = ", ".join(map(str, places))
    reason = _say_degraded(
        f"{known.title} was not found in {searched} and could not be downloaded ({error}); "
        f"training on scikit-learn's digits instead; put {_expected(known)} into $DYNAMIX_DATA"
    )
    return _digits(known.shape, f"scikit-learn's digits in place of {known.title}", shifts=2, degraded=reason)


def _digits(shape: tuple[int, int, int], title: str, shifts: int, degraded: str | None = None) -> DataSet:
    """1,797 digits of 8x8 pixels, enlarged; every fifth one is a test image.

    `shifts` adds copies of the training images moved by up to that many pixels each way, so that the
    number of samples is about that of the larger data set it replaces.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            f"{degraded or 'digits'}; but scikit-learn is not installed: pip install scikit-learn"
        ) from error
    bundle = load_digits()
    height, width, channels = shape
    small = bundle.images.astype(np.float32) * np.float32(255 / 16)
    large = _between(height, 8) @ small @ _between(width, 8).T
    pixels = np.broadcast_to(np.rint(large)[..., None], (*large.shape, channels)).astype(np.uint8)
    labels = bundle.target.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    moves = range(-shifts, shifts + 1)
    moved = [np.roll(pixels[~test], (down, right), axis=(1, 2)) for down in moves for right in moves]
    raw = RawImages(np.concatenate(moved), np.tile(labels[~test], len(moved)), pixels[test], labels[test])
    scaled = raw.x_train.astype(np.float32) / 255
    known = _Known(
        title, shape, (float(scaled.mean()),) * channels, (float(scaled.std()),) * channels, {}, (), read_idx
    )
    return _data_set(known, raw, "the installed package", degraded)


def _between(length: int, before: int) -> NDArray[np.float32]:
    """Weights that stretch a row of `before` pixels to `length` pixels, by distance; shape (length, before)."""
    places = np.clip((np.arange(length) + 0.5) * before / length - 0.5, 0, before - 1)
    weights: NDArray[np.float32] = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(before))).astype(np.float32)
    return weights
