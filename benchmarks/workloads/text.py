"""A text for language models over bytes: sources of Python's standard library, or any file.

A sample is CONTEXT bytes of the text, and the label of each is the byte that follows it. The end of the text is the
test set. Every machine with Python has the standard library, but each version of Python has another text: `source`
names the version and a checksum, and the number of samples is the same everywhere.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path

import numpy as np

from benchmarks.workloads.data_set import DataSet, Samples
from dynamix_ps.errors import DataError

CONTEXT = 64  # bytes that a model sees at once
BYTES = 256  # what a byte can be
TRAIN_SAMPLES, TEST_SAMPLES = 24_000, 1024  # of the standard library; a file has as many as it has
TEST_PART = 10  # one in so many samples of a file is a test sample, at most TEST_SAMPLES


def load(path: Path | None = None) -> DataSet:
    """Load the file at `path`, or sources of the standard library. Raises DataError if there is not enough text."""
    if path is None:
        text, source = _standard_library((TRAIN_SAMPLES + TEST_SAMPLES) * CONTEXT + 1)
        return _data_set("Python's standard library", source, text, TEST_SAMPLES)
    text = _read(path)
    samples = (len(text) - 1) // CONTEXT
    if samples < TEST_PART:
        raise DataError(
            f"{path}: got {len(text):,} bytes, expected {TEST_PART * CONTEXT + 1:,} or more; give a longer text"
        )
    return _data_set(path.name, str(path), text, min(TEST_SAMPLES, samples // TEST_PART))


def _standard_library(size_bytes: int) -> tuple[bytes, str]:
    """The first bytes of its modules in the order of their names, and what they are.

    Modules with an underscore in front differ between machines with one version of Python, so they are left out.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = b""
    for file in sorted(folder.glob("[!_]*.py")):
        text += _read(file)
        if len(text) >= size_bytes:
            return text[:size_bytes], f"Python {platform.python_version()}'s standard library, {folder}"
    raise DataError(
        f"{folder}: got {len(text):,} bytes of Python sources, expected {size_bytes:,}; install the sources of the "
        "standard library, or give a text file by --path"
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}; give a text file that can be read") from error


def _data_set(name: str, where: str, text: bytes, test_samples: int) -> DataSet:
    samples = (len(text) - 1) // CONTEXT
    cut = samples - test_samples
    checksum = hashlib.sha256(text).hexdigest()[:12]
    source = f"{where} ({cut:,} training and {test_samples:,} test samples of {CONTEXT} bytes, {checksum})"
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    inputs, labels = (codes[first : first + samples * CONTEXT].reshape(samples, CONTEXT) for first in (0, 1))
    train, test = (Samples(inputs[part], labels[part], source, None) for part in (slice(cut), slice(cut, None)))
    return DataSet(name, source, train, test, classes=BYTES)
