import dataclasses
import gzip
import hashlib
import io
import os
import pickle
import re
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.workloads import data, download
from benchmarks.workloads.download import RemoteFile, fetch
from benchmarks.workloads.formats import IDX_FILES
from benchmarks.workloads.torch_samples import SampleSet
from dynamix_ps.errors import DataError, UsageError

FASHION = (28, 28, 1)
CIFAR = (32, 32, 3)


@pytest.fixture(autouse=True)
def no_data_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(url: str, timeout: float) -> Any:
        raise OSError("no network in this test")

    monkeypatch.delenv("DYNAMIX_DATA", raising=False)
    monkeypatch.setenv("DYNAMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download.urllib.request, "urlopen", refused)


def pixels(samples: int, shape: tuple[int, int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (samples, *shape), dtype=np.uint8)


def labels(samples: int) -> np.ndarray:
    return np.arange(samples) % 10


def write_npz(path: Path, shape: tuple[int, int, int], train: int = 30, test: int = 10, **changed: Any) -> Path:
    arrays = {"x_train": pixels(train, shape, 1), "y_train": labels(train)}
    arrays |= {"x_test": pixels(test, shape, 2), "y_test": labels(test)} | changed
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


def write_idx(folder: Path, train: int = 30, test: int = 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [pixels(train, FASHION, 1)[..., 0], labels(train), pixels(test, FASHION, 2)[..., 0], labels(test)]
    for name, array in zip(IDX_FILES, arrays, strict=True):
        (folder / name).write_bytes(idx_bytes(array.astype(np.uint8)))
    return folder


def write_cifar(folder: Path, batches: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if batches is None:
        batches = {f"data_batch_{n}": cifar_batch(n) for n in range(1, 6)} | {"test_batch": cifar_batch(9)}
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


def cifar_batch(seed: int, samples: int = 6) -> bytes:
    planes = pixels(samples, CIFAR, seed).transpose(0, 3, 1, 2).reshape(samples, -1)
    return pickle.dumps({b"data": planes, b"labels": labels(samples).tolist()}, protocol=2)


class TestFormats:
    def test_npz_is_normalised_planar_and_typed(self, tmp_path: Path) -> None:
        path = write_npz(tmp_path / "mine.npz", FASHION)
        found = data.load("fashion-mnist", path)
        inputs, targets = SampleSet(found.train).tensors
        assert inputs.dtype == torch.float32 and targets.dtype == torch.int64
        assert found.shape == (1, 28, 28) and len(found.train) == 30 and len(found.test) == 10
        raw = torch.from_numpy(pixels(30, FASHION, 1)).permute(0, 3, 1, 2) / 255
        torch.testing.assert_close(inputs, (raw - 0.2860) / 0.3530)
        assert targets.tolist() == labels(30).tolist()
        assert str(path) in found.source and found.degraded is None

    def test_cifar_channels_have_their_own_statistics(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "cifar10.npz", CIFAR)
        found = data.load("cifar-10", tmp_path)
        raw = torch.from_numpy(pixels(10, CIFAR, 2)).permute(0, 3, 1, 2) / 255
        torch.testing.assert_close(torch.from_numpy(found.test.inputs[:, 2]), (raw[:, 2] - 0.4465) / 0.2616)
        assert "a subset" in found.source

    def test_idx_equals_npz(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "a" / "fashion_mnist.npz", FASHION)
        one = data.load("fashion-mnist", tmp_path / "a")
        two = data.load("fashion-mnist", write_idx(tmp_path / "b"))
        for a, b in ((one.train, two.train), (one.test, two.test)):
            assert np.array_equal(a.inputs, b.inputs) and np.array_equal(a.labels, b.labels)

    def test_cifar_archive(self, tmp_path: Path) -> None:
        write_cifar(tmp_path)
        found = data.load("cifar-10", tmp_path / "cifar-10-python.tar.gz")
        assert (len(found.train), len(found.test)) == (30, 6)
        raw = torch.from_numpy(pixels(6, CIFAR, 2)[0]) / 255  # first of the second batch
        torch.testing.assert_close(torch.from_numpy(found.train.inputs[6, 1]), (raw[..., 1] - 0.4822) / 0.2435)

    def test_archive_of_old_pickles(self, tmp_path: Path) -> None:
        """Numpy's former module name, and bytes rebuilt through _codecs.encode, as in the published archive's kind."""
        content = cifar_batch(1).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert b"numpy.core.multiarray" in content and b"_codecs" in content
        batches = {f"data_batch_{n}": content for n in range(1, 6)} | {"test_batch": content}
        assert len(data.load("cifar-10", write_cifar(tmp_path, batches)).train) == 30


class TestDamage:
    @pytest.mark.parametrize("cut", [10, 1000, 15_000])
    def test_truncated_npz(self, tmp_path: Path, cut: int) -> None:
        path = write_npz(tmp_path / "fashion_mnist.npz", FASHION)
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(DataError, match=rf"fashion_mnist\.npz.*got {cut:,} bytes.*expected a whole \.npz.*delete"):
            data.load("fashion-mnist", path)

    def test_flipped_bytes_in_npz(self, tmp_path: Path) -> None:
        path = write_npz(tmp_path / "fashion_mnist.npz", FASHION)
        content = bytearray(path.read_bytes())
        content[5000:5010] = bytes(10)
        path.write_bytes(content)
        with pytest.raises(DataError, match="fashion_mnist"):
            data.load("fashion-mnist", path)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"y_test": None}, "y_test"),
            ({"x_train": pixels(30, CIFAR, 1)}, r"x_train is uint8 \(30, 32, 32, 3\)"),
            ({"x_train": np.zeros((30, *FASHION))}, "float64"),
            ({"y_train": labels(29)}, "30 images in x_train"),
            ({"y_train": labels(30) + 1}, "labels in y_train from 1 to 10"),
            ({"x_test": pixels(0, FASHION, 1), "y_test": labels(0)}, "x_test"),
            ({"y_train": np.array([{}] * 30)}, "pickle"),
        ],
    )
    def test_npz_of_another_kind(self, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
        path = write_npz(tmp_path / "fashion_mnist.npz", FASHION, **changed)
        with pytest.raises(DataError, match=message):
            data.load("fashion-mnist", path)

    def test_truncated_idx_is_named(self, tmp_path: Path) -> None:
        file = write_idx(tmp_path) / IDX_FILES[2]
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(DataError, match=IDX_FILES[2]):
            data.load("fashion-mnist", tmp_path)

    def test_idx_with_fewer_pixels_than_its_header_says(self, tmp_path: Path) -> None:
        array = pixels(30, FASHION, 1)[..., 0]
        file = write_idx(tmp_path) / IDX_FILES[0]
        file.write_bytes(gzip.compress(gzip.decompress(idx_bytes(array))[:-28]))
        with pytest.raises(DataError, match="train-images"):
            data.load("fashion-mnist", tmp_path)

    def test_file_that_is_no_idx(self, tmp_path: Path) -> None:
        (write_idx(tmp_path) / IDX_FILES[1]).write_bytes(gzip.compress(b"<html>not found</html>"))
        with pytest.raises(DataError, match=r"train-labels.*IDX's mark"):
            data.load("fashion-mnist", tmp_path)

    def test_incomplete_set_of_idx_files(self, tmp_path: Path) -> None:
        (write_idx(tmp_path) / IDX_FILES[3]).unlink()
        with pytest.raises(DataError, match=rf"missing: {IDX_FILES[3]}"):
            data.load("fashion-mnist", tmp_path)

    def test_truncated_cifar_archive(self, tmp_path: Path) -> None:
        file = write_cifar(tmp_path) / "cifar-10-python.tar.gz"
        file.write_bytes(file.read_bytes()[:-5000])
        with pytest.raises(DataError, match="cifar-10-python"):
            data.load("cifar-10", tmp_path)

    def test_cifar_archive_without_a_batch(self, tmp_path: Path) -> None:
        write_cifar(tmp_path, {"data_batch_1": cifar_batch(1)})
        with pytest.raises(DataError, match="without data_batch_2"):
            data.load("cifar-10", tmp_path)

    def test_damaged_file_is_no_reason_to_fall_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DYNAMIX_DATA", str(tmp_path))
        (tmp_path / "fashion_mnist.npz").write_bytes(b"PK")
        with pytest.raises(DataError):
            data.load("fashion-mnist")


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


class TestMaliciousPickle:
    def test_program_in_a_pickle_does_not_run(self, tmp_path: Path) -> None:
        evil = pickle.dumps({b"data": _Evil(tmp_path / "ran"), b"labels": []}, protocol=2)
        write_cifar(tmp_path, {"data_batch_1": evil})
        with pytest.raises(DataError, match=r"asks for (posix|os)\.system, which is refused"):
            data.load("cifar-10", tmp_path)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("opcode", [b"cbuiltins\neval\n.", b"cnumpy\nload\n.", b"c_codecs\nopen\n."])
    def test_names_beyond_arrays_are_refused(self, tmp_path: Path, opcode: bytes) -> None:
        write_cifar(tmp_path, {"data_batch_1": opcode})
        with pytest.raises(DataError, match="which is refused"):
            data.load("cifar-10", tmp_path)

    def test_other_codecs_are_refused(self, tmp_path: Path) -> None:
        write_cifar(tmp_path, {"data_batch_1": b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00zlbtR."})
        with pytest.raises(DataError, match="encoding 'zlb' is not allowed"):
            data.load("cifar-10", tmp_path)


class TestSearch:
    @pytest.mark.parametrize("kind", ["npz", "originals"])
    def test_a_whole_file_that_is_not_the_published_one_is_used_and_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
    ) -> None:
        place = write_npz(tmp_path / "fashion_mnist.npz", FASHION) if kind == "npz" else write_idx(tmp_path / "d")
        file = place if kind == "npz" else place / IDX_FILES[0]
        got = hashlib.sha256(file.read_bytes()).hexdigest()
        found = data.load("fashion-mnist", place)
        assert found.degraded is not None
        assert f"{file} is not the published Fashion-MNIST: got sha256 {got}, expected" in found.degraded
        assert found.train.degraded == found.test.degraded == found.degraded
        assert capsys.readouterr().err == f"degraded: data: {found.degraded}\n"

    def test_the_published_file_is_not_degraded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = write_npz(tmp_path / "fashion_mnist.npz", FASHION)
        known = data._KNOWN["fashion-mnist"]
        changed = dataclasses.replace(known, npz_sha256={file.name: hashlib.sha256(file.read_bytes()).hexdigest()})
        monkeypatch.setitem(data._KNOWN, "fashion-mnist", changed)
        assert data.load("fashion-mnist", tmp_path).degraded is None

    def test_order_is_variable_then_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_npz(tmp_path / "cache" / "data" / "fashion_mnist.npz", FASHION, train=11)
        assert len(data.load("fashion-mnist").train) == 11
        write_npz(tmp_path / "mine" / "fashion_mnist.npz", FASHION, train=12)
        monkeypatch.setenv("DYNAMIX_DATA", str(tmp_path / "mine"))
        assert len(data.load("fashion-mnist").train) == 12
        write_npz(tmp_path / "given" / "fashion_mnist.npz", FASHION, train=13)
        assert len(data.load("fashion-mnist", tmp_path / "given").train) == 13

    def test_given_path_without_the_data_set_is_an_error(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "cache" / "data" / "fashion_mnist.npz", FASHION)
        for path in (tmp_path, tmp_path / "nowhere", write_npz(tmp_path / "x.tar", FASHION)):
            with pytest.raises(DataError, match=r"fashion_mnist\.npz or train-images-idx3-ubyte\.gz"):
                data.load("fashion-mnist", path)

    def test_unknown_name(self) -> None:
        with pytest.raises(UsageError, match="fashion-mnist, cifar-10, digits"):
            data.load("mnist")

    def test_digits_stand_in_says_so_loudly(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("DYNAMIX_DATA", str(tmp_path / "empty"))
        found = data.load("fashion-mnist")
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("degraded:")]
        assert told == [f"degraded: data: {found.degraded}"]
        assert found.degraded is not None
        for part in (
            "Fashion-MNIST",
            str(tmp_path / "empty"),
            "cache/data",
            "no network",
            "digits",
            "fashion_mnist.npz",
        ):
            assert part in found.degraded
        assert "scikit-learn's digits in place of Fashion-MNIST" in found.source
        assert found.train.source == found.source and found.train.degraded == found.degraded
        assert found.shape == (1, 28, 28)
        assert len(found.train) > 30_000  # a run made for 60,000 samples finds enough of them
        assert found.train.inputs.std() == pytest.approx(1.0, abs=0.01)

    def test_digits_by_name_are_no_stand_in(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = data.load("digits")
        assert (len(found.train), len(found.test), found.degraded) == (1437, 360, None)
        assert capsys.readouterr().err == ""

    def test_digits_are_enlarged_as_torch_does_it(self) -> None:
        from sklearn.datasets import load_digits

        small = torch.from_numpy(load_digits().images * (255 / 16)).unsqueeze(1)
        large = torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
        wanted = large[np.arange(len(large)) % 5 == 0].round() / 255
        got = torch.from_numpy(data.load("digits").test.inputs).double()
        assert torch.corrcoef(torch.stack([wanted.flatten(), got.flatten()]))[0, 1].item() == pytest.approx(1, abs=1e-6)

    @pytest.mark.slow
    def test_stand_in_for_colour_images_has_their_shape(self) -> None:
        assert data.load("cifar-10").shape == (3, 32, 32)

    def test_without_scikit_learn_all_reasons_are_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
        with pytest.raises(DataError, match=r"no network.*pip install scikit-learn"):
            data.load("fashion-mnist")


class TestDownload:
    def serve(self, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[str]:
        asked = []

        def reply(url: str, timeout: float) -> io.BytesIO:
            asked.append(url)
            return io.BytesIO(files[url])

        monkeypatch.setattr(download.urllib.request, "urlopen", reply)
        return asked

    def test_files_are_kept_and_not_asked_for_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = RemoteFile("http://home/a.gz", hashlib.sha256(b"content").hexdigest())
        asked = self.serve(monkeypatch, {file.url: b"content"})
        fetch([file], tmp_path / "d")
        fetch([file], tmp_path / "d")
        assert (tmp_path / "d" / "a.gz").read_bytes() == b"content"
        assert asked == [file.url]

    def test_wrong_checksum_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = RemoteFile("http://home/a.gz", "0" * 64)
        self.serve(monkeypatch, {file.url: b"content"})
        got = hashlib.sha256(b"content").hexdigest()
        with pytest.raises(DataError, match=rf"http://home/a\.gz: wrong checksum: got sha256 {got}.*expected 0000"):
            fetch([file], tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]

    def test_downloaded_data_set_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        originals = write_idx(tmp_path / "originals", train=17)
        known = data._KNOWN["fashion-mnist"]
        remote = [
            RemoteFile(f.url, hashlib.sha256((originals / f.name).read_bytes()).hexdigest()) for f in known.remote
        ]
        self.serve(monkeypatch, {f.url: (originals / f.name).read_bytes() for f in known.remote})
        changed = dataclasses.replace(known, remote=tuple(remote))
        monkeypatch.setitem(data._KNOWN, "fashion-mnist", changed)
        found = data.load("fashion-mnist")
        assert (len(found.train), found.degraded) == (17, None)
        assert (tmp_path / "cache" / "data" / IDX_FILES[0]).is_file()

    def test_table_names_a_checksum_for_every_file(self) -> None:
        remote = [file for known in data._KNOWN.values() for file in known.remote]
        assert len({file.sha256 for file in remote}) == len(remote) == 5
        assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in remote)

    def test_unwritable_cache(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="DYNAMIX_CACHE"):
            fetch([], tmp_path / "file" / "below")
