"""What a data set must be: map style, with samples that can be stacked into batches. Pure; any framework's arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dynamix_ps.errors import TrainingError

FEW = 4  # arrays in a tuple that is taken for columns, not for samples
_MAP_STYLE = "a data set with len(d) and d[i]"


def check_map_style(dataset: Any) -> None:
    """Raises TrainingError, which says what to pass instead, unless `dataset` has a length and samples by number."""
    kind = type(dataset)
    bases = {base.__name__ for base in kind.__mro__}
    if "DataLoader" in bases:
        why = (
            "only a torch.utils.data.DataLoader can be taken, and in MXNet a gluon.data.DataLoader; pass loader.dataset"
        )
    elif "IterableDataset" in bases or hasattr(dataset, "__next__"):
        why = (
            f"a stream has no sample numbers; pass {_MAP_STYLE}, for example list(stream) where it fits into memory, "
            "in torch also an IterableDataset or shards(...)"
        )
    elif isinstance(dataset, Mapping) and 0 not in dataset:
        why = f"pass one of its data sets, or {_MAP_STYLE} that returns a dict per sample"
    elif hasattr(dataset, "iloc"):
        why = "d[i] is a column of a table; pass TensorDataset(torch.tensor(table[columns].values), ...)"
    elif _is_columns(dataset):
        arrays, rows = len(dataset), len(dataset[0])
        why = (
            f"{arrays} arrays of {rows} rows each count as {arrays} samples; pass "
            "torch.utils.data.TensorDataset(torch.as_tensor(X), torch.as_tensor(y)), in MXNet "
            "gluon.data.ArrayDataset(X, y)"
        )
    elif not hasattr(kind, "__len__") or not (hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")):
        missing = "len()" if not hasattr(kind, "__len__") else "[i]"
        why = f"it has no {missing}; pass {_MAP_STYLE}"
    else:
        return
    raise TrainingError(f"the hook cannot take batches out of a {kind.__name__}: {why}")


def _is_columns(dataset: Any) -> bool:
    if not isinstance(dataset, (tuple, list)) or not 1 <= len(dataset) <= FEW:
        return False
    rows = {(getattr(one, "shape", None) or (0,))[0] for one in dataset}
    return len(rows) == 1 and rows.pop() > len(dataset)


def samples_at(dataset: Any, numbers: list[int]) -> list[Any]:
    """These samples, in one call of `__getitems__` where the data set has it.

    Raises TrainingError if `__getitems__` does not return a sample per number.
    """
    if not hasattr(dataset, "__getitems__"):
        return [dataset[number] for number in numbers]
    samples = dataset.__getitems__(numbers)
    if not isinstance(samples, (list, tuple)) or len(samples) != len(numbers):
        size = f" of {len(samples)}" if isinstance(samples, (list, tuple)) else ""
        raise TrainingError(
            f"the data set's __getitems__ returned a {type(samples).__name__}{size} for {len(numbers)} sample numbers; "
            "return a list with one sample for each"
        )
    return list(samples)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All parts of a sample or batch that are no dict, tuple or list of other parts, each with its path: `["x"][0]`.

    A list of strings is one part: so come the strings of a batch.
    """
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from leaves(value[key], f'{path}["{key}"]' if isinstance(key, str) else f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)) and not (value and all(isinstance(one, str) for one in value)):
        names = getattr(value, "_fields", None)
        for place, one in enumerate(value):
            yield from leaves(one, f"{path}.{names[place]}" if names else f"{path}[{place}]")
    else:
        yield path, value


def not_stackable(samples: Sequence[Any], error: Exception) -> TrainingError:
    """The error for samples that a framework could not stack: it names the field at fault and what to do."""
    fields = [dict(leaves(sample)) for sample in samples]
    return TrainingError(f"samples of the data set cannot be stacked into a batch: {_fault(fields) or error}")


def _fault(samples: Sequence[Mapping[str, Any]]) -> str:
    """What keeps these samples, as leaves by path, from being stacked; empty if that is not known."""
    for sample in samples:
        if other := sorted(set(sample) ^ set(samples[0])):
            return f"sample{other[0]} is in some of them only; return the same fields for every sample"
    for path in samples[0]:
        column = [sample[path] for sample in samples]
        if any(value is None for value in column):
            return f"sample{path} is None; leave it out, or return a number or tensor in its place"
        shapes = [tuple(value.shape) for value in column if hasattr(value, "shape")]
        if len(set(shapes)) > 1:
            different = list(dict.fromkeys(map(str, shapes)))
            shown = ", ".join(different[:3]) + (", ..." if len(different) > 3 else "")
            return (
                f"sample{path} has the shapes {shown}; pad them to one shape in the data set's __getitems__(indices), "
                "which returns the list of samples of a batch"
            )
        kinds = {type(value).__name__ for value in column}
        if len(kinds) > 1:
            return f"sample{path} has the types {', '.join(sorted(kinds))}; return one type for every sample"
        if not shapes and not isinstance(column[0], (int, float, complex, str, bytes)):
            return (
                f"sample{path} is of type {kinds.pop()}; return tensors, arrays, numbers, strings, or tuples and dicts "
                "of these"
            )
    return ""
