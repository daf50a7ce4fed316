"""The text of the language model."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.workloads import data, text
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.errors import DataError


def test_the_label_of_a_byte_is_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    written = bytes(np.random.default_rng(0).integers(0, 256, 50 * CONTEXT + 17, dtype=np.uint8))
    file.write_bytes(written)
    found = data.load("text", file)
    assert (len(found.train), len(found.test), found.shape, found.classes) == (45, 5, (CONTEXT,), 256)
    inputs = np.concatenate([found.train.inputs, found.test.inputs]).ravel()
    labels = np.concatenate([found.train.labels, found.test.labels]).ravel()
    assert bytes(inputs.astype(np.uint8)) == written[: 50 * CONTEXT]
    assert bytes(labels.astype(np.uint8)) == written[1 : 50 * CONTEXT + 1]
    assert found.lengths is not None and found.lengths.tolist() == [CONTEXT] * 45
    assert str(file) in found.source and "45 training and 5 test samples" in found.source


def test_images_have_no_lengths() -> None:
    assert data.load("digits").lengths is None


def test_the_standard_library_has_as_many_samples_everywhere() -> None:
    found = data.load("text")
    assert (len(found.train), len(found.test)) == (text.TRAIN_SAMPLES, text.TEST_SAMPLES)
    assert "standard library" in found.source and found.degraded is None
    assert bytes(found.train.inputs[:4].ravel().astype(np.uint8)).startswith(b"# Copyright 2007 Google")  # abc.py
    assert data.load("text").source == found.source


def test_modules_come_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.py", "_private.py", "a.py", "c.txt"):
        (tmp_path / name).write_bytes(name[:1].encode() * CONTEXT * 20)
    monkeypatch.setattr(text.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(text, "TRAIN_SAMPLES", 22)
    monkeypatch.setattr(text, "TEST_SAMPLES", 8)
    found = data.load("text")
    assert bytes(found.train.inputs[::20, 0].astype(np.uint8)) == b"ab"
    assert set(found.test.inputs.ravel()) == {ord("b")}


def test_too_little_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(b"x" * 640)
    with pytest.raises(DataError, match=r"short\.txt: got 640 bytes, expected 641 or more; give a longer text"):
        data.load("text", short)
    short.write_bytes(b"x" * 641)
    assert len(data.load("text", short).test) == 1
    with pytest.raises(DataError, match="give a text file that can be read"):
        data.load("text", tmp_path)
    monkeypatch.setattr(text.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match=r"got 0 bytes of Python sources, expected [\d,]+; install"):
        data.load("text")
