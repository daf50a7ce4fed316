"""What is no usable data set is refused with what to pass instead; samples that cannot be stacked are named."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dynamix_ps.errors import TrainingError
from tests.unit.worker_hooks.local_run import make_data, make_run
from worker_hooks.loading.data_set import check_map_style, leaves
from worker_hooks.torch.data.batches import fetch


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(100))


class StreamOfKnownLength(Stream):
    def __len__(self) -> int:
        return 100


class WithoutLength(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


class Table:
    iloc = ()

    def __len__(self) -> int:
        return 5

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)


class Samples:
    """A data set of these samples."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        return self.samples[number]


X, Y = np.zeros((350, 12)), np.zeros(350)


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (DataLoader(make_data()), r"DataLoader: only a torch.*pass loader\.dataset"),
        (Stream(), "Stream: a stream has no sample numbers"),
        (StreamOfKnownLength(), "a stream has no sample numbers"),
        ((sample for sample in [1, 2]), "generator: a stream has no sample numbers"),
        ({"train": make_data()}, "dict: pass one of its data sets"),
        (Table(), "column of a table"),
        ((X, Y), r"tuple: 2 arrays of 350 rows each count as 2 samples; pass torch\.utils\.data\.TensorDataset"),
        ([torch.from_numpy(X), torch.from_numpy(Y)], "list: 2 arrays of 350 rows"),
        (WithoutLength(), r"it has no len\(\)"),
        (None, r"it has no len\(\)"),
        ({1, 2}, r"it has no \[i\]"),
    ],
)
def test_what_has_no_samples_by_number_is_refused(dataset, named):
    with pytest.raises(TrainingError, match=named):
        check_map_style(dataset)


@pytest.mark.parametrize(
    "dataset",
    [
        make_data(),
        list(zip(X, Y, strict=True)),
        X,
        torch.from_numpy(X),
        [torch.zeros(20)] * 100,  # samples without targets
        {0: 1.0, 1: 2.0},
        Samples(1, 2),
        torch.utils.data.Subset(make_data(), [0, 1]),
    ],
)
def test_data_sets_are_let_in(dataset):
    check_map_style(dataset)


def test_attach_and_evaluate_refuse_alike(monkeypatch):
    run = make_run()
    with pytest.raises(TrainingError, match="a stream has no sample numbers"):
        run.evaluate(iter(make_data()), lambda x, y: 0)
    run.close()
    monkeypatch.setattr("tests.unit.worker_hooks.local_run.make_data", lambda: iter([1, 2]))
    with pytest.raises(TrainingError, match="a stream has no sample numbers"):
        make_run()


@pytest.mark.parametrize(
    ("samples", "named"),
    [
        (((torch.zeros(5), 0), (torch.zeros(7), 1)), r"sample\[0\] has the shapes \(5,\), \(7,\); pad them"),
        (({"x": {"mask": None}}, {"x": {"mask": None}}), r'sample\["x"\]\["mask"\] is None; leave it out'),
        ((1, None), "sample is None"),
        (({"x": 1, "y": 2}, {"x": 1}), r'sample\["y"\] is in some of them only'),
        (((1, 2), (1,)), r"sample\[1\] is in some of them only"),
        (({"x": object()}, {"x": object()}), r'sample\["x"\] is of type object; return tensors'),
        (({"x": torch.zeros(1)}, {"x": "text"}), r'sample\["x"\] has the types Tensor, str'),
    ],
)
def test_samples_that_cannot_be_stacked_are_one_error(samples, named):
    with pytest.raises(TrainingError, match=named) as caught:
        fetch(Samples(*samples), np.arange(2))
    assert "\n" not in str(caught.value)


def test_of_many_shapes_three_are_named():
    with pytest.raises(TrainingError, match=r"\(1,\), \(2,\), \(3,\), \.\.\.; pad"):
        fetch(Samples(*(torch.zeros(n) for n in range(1, 30))), np.arange(29))


def test_the_error_comes_from_the_loop_also_when_a_thread_prepares_batches(monkeypatch):
    ragged = Samples(*((torch.zeros(4 + n), 0) for n in range(50)))
    monkeypatch.setattr("tests.unit.worker_hooks.local_run.make_data", lambda: ragged)
    run = make_run(prefetch=2)
    with pytest.raises(TrainingError, match="pad them"):
        next(run.batches(epochs=1))


def test_a_wrong_number_of_samples_is_refused():
    class Columns(Samples):
        def __getitems__(self, numbers: list[int]) -> Any:
            return {"x": torch.zeros(len(numbers))}

    class Fewer(Samples):
        def __getitems__(self, numbers: list[int]) -> Any:
            return [1.0]

    with pytest.raises(TrainingError, match="returned a dict for 2 sample numbers"):
        fetch(Columns(1, 2), np.arange(2))
    with pytest.raises(TrainingError, match="returned a list of 1 for 2 sample numbers"):
        fetch(Fewer(1, 2), np.arange(2))


Point = namedtuple("Point", "x y")


def test_strings_dicts_and_named_tuples_become_batches():
    batch = fetch(Samples(*({"text": str(n), "at": Point(n, [1.0 * n, 2])} for n in range(3))), np.arange(3))
    assert list(batch["text"]) == ["0", "1", "2"]
    assert batch["at"].x.tolist() == [0, 1, 2]
    assert dict(leaves(batch)).keys() == {'["at"].x', '["at"].y[0]', '["at"].y[1]', '["text"]'}


def test_a_tensor_data_set_with_samples_of_its_own_is_asked_for_them():
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    (batch,) = fetch(Doubled(torch.arange(4.0)), np.array([1, 3]))
    assert batch.tolist() == [2.0, 6.0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(6, 2, 2),
        torch.arange(6) > 2,
        torch.arange(24, dtype=torch.float64).reshape(4, 6).t(),
        torch.arange(48.0).reshape(6, 2, 2, 2).to(memory_format=torch.channels_last),
        torch.arange(24.0).reshape(12, 2)[::2],
        torch.nn.Parameter(torch.arange(6.0)),
        torch.empty(6, 0),
    ],
    ids=["rows in one piece", "booleans", "turned", "channels last", "every other row", "parameter", "empty"],
)
def test_rows_of_tensors_are_as_torch_indexes_them(tensor: torch.Tensor) -> None:
    numbers = np.array([4, 0, 4, 5])
    (batch,), expected = fetch(TensorDataset(tensor), numbers), tensor[torch.from_numpy(numbers)]
    assert (batch.dtype, batch.shape, batch.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(batch, expected)
