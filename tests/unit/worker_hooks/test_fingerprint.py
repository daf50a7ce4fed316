"""Workers find out that their data sets differ, and are not misled by random samples."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dynamix_ps.comm.local import LocalComm
from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_source import DataSetSource
from worker_hooks.loading.fingerprint import fingerprint
from worker_hooks.start import check_data_sets
from worker_hooks.torch.data.batches import fetch


class ThreadComm(LocalComm):
    """Workers are threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, shelf: dict[int, Any]) -> None:
        self.rank, self.size = rank, barrier.parties
        self._barrier, self._shelf = barrier, shelf

    def total(self, name: str, values: Any) -> Any:
        self._shelf[self.rank] = values
        self._barrier.wait(10)
        result = sum(self._shelf[rank] for rank in range(self.size))
        self._barrier.wait(10)
        return result


def checked(*datasets: Any) -> list[str]:
    """What every worker is told about these data sets; empty: it may go on."""
    barrier, shelf = threading.Barrier(len(datasets)), {}

    def check(rank: int) -> str:
        try:
            check_data_sets(ThreadComm(rank, barrier, shelf), "data", DataSetSource(datasets[rank], fetch, 0))
        except TrainingError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(datasets)) as pool:
        return list(pool.map(check, range(len(datasets))))


def tensors(samples: int = 64, seed: int = 0, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 5, generator=generator)
    return TensorDataset(inputs.to(dtype), (inputs.sum(1) > 0).long())


class Made:
    """A data set whose samples a function makes."""

    def __init__(self, make: Callable[[int], Any], length: int = 40) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Any:
        return self._make(number)


def test_equal_data_sets_may_go_on():
    assert checked(tensors(), tensors(), tensors()) == ["", "", ""]
    text = [Made(lambda n: {"text": f"sample {n}", "label": n % 2}) for _ in range(2)]
    assert checked(*text) == ["", ""]
    assert checked(tensors(dtype=torch.bfloat16), tensors(dtype=torch.bfloat16)) == ["", ""]


def test_different_lengths_are_named_with_their_workers():
    messages = checked(tensors(600), tensors(800), tensors(600))
    assert len(set(messages)) == 1
    assert "differ: 600 samples on workers 0, 2, 800 samples on worker 1; give every worker the whole" in messages[0]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (tensors(seed=1), "sample[0] is not the same on workers 0, 1"),
        (tensors(dtype=torch.float64), "other fields or types on worker 1"),
        (TensorDataset(tensors().tensors[0]), "other fields or types on worker 1"),
        (TensorDataset(tensors().tensors[0], 1 - tensors().tensors[1]), "sample[1] is not the same on workers 0, 1"),
        (TensorDataset(*(tensor.flip(0) for tensor in tensors().tensors)), "sample[0] is not the same"),
    ],
)
def test_different_content_is_named(other, named):
    messages = checked(tensors(), other)
    assert len(set(messages)) == 1
    assert named in messages[0]


def test_strings_count():
    messages = checked(*(Made(lambda n, word=word: {"text": f"{word} {n}"}) for word in ("a", "b")))
    assert 'sample["text"] is not the same' in messages[0]


def test_what_differs_by_rounding_is_the_same():
    inputs, targets = tensors().tensors
    assert checked(tensors(), TensorDataset(inputs * (1 + 1e-6), targets)) == ["", ""]


def test_random_samples_are_left_out_of_the_comparison():
    def augmented(n: int) -> Any:
        flipped = np.random.default_rng().random() < 0.5  # a generator of its own, another state everywhere
        return torch.full((3,), float(n)) * (-1 if flipped else 1), n % 10

    for _ in range(20):  # by chance two fetches are alike on both workers and differ: more fetches follow
        assert checked(Made(augmented), Made(augmented)) == ["", ""]
    wrong = checked(Made(augmented), Made(lambda n: (augmented(n)[0], n % 7)))
    assert "sample[1] is not the same" in wrong[0]


def test_a_refusal_reaches_the_other_workers():
    ragged = Made(torch.zeros)
    messages = checked(tensors(40), ragged)
    assert messages[0] == "the data set of worker 1 is refused; its log says why"
    assert "pad them" in messages[1]
    assert checked(iter([1]), iter([1]))[0].startswith("the hook cannot take batches out of a list_iterator")


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_global_generators_are_as_before_and_alike_while_samples_are_compared():
    rows = []
    for number in (3, 4):
        seed(number)
        expected = draw()
        seed(number)
        rows.append(fingerprint(64, lambda numbers: draw(), times=2).row())
        assert draw() == expected
    assert rows[0].tolist() == rows[1].tolist()
    assert np.count_nonzero(rows[0][3::3]) == 3, "all three fields are compared"


def test_a_single_worker_fetches_nothing():
    def fail(n: int) -> Any:
        raise AssertionError(n)

    assert checked(Made(fail)) == [""]
