"""What a checkpoint of torch can hold, and read back without running code: numbers, text, tensors, lists and dicts."""

from __future__ import annotations

import copy
import io
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch

from dynamix_ps.errors import CheckpointError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_TABLES = (dict, OrderedDict, Counter)
_LISTS = (list, tuple, set)


def storable(value: Any, where: str) -> Any:
    """`value` with Python's numbers in place of numpy's. `where`: its name in an error.

    Raises CheckpointError, which names the key, for a value that could not be read back.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.generic):
        return storable(value.item(), where)
    if kind in _TABLES:
        changed = copy.copy(value)  # with what else a dict has, such as the versions of a model's modules
        changed.clear()
        changed.update({storable(key, where): storable(one, f"{where}[{key!r}]") for key, one in value.items()})
        return changed
    if kind in _LISTS:
        return kind(storable(one, f"{where}[{number}]") for number, one in enumerate(value))
    _check_read_back(value, where)
    return value


def _check_read_back(value: Any, where: str) -> None:
    """For types that the script has allowed by torch.serialization.add_safe_globals()."""
    packed = io.BytesIO()
    try:
        torch.save(value, packed)
        packed.seek(0)
        torch.load(packed, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever pickle raises for a value of another kind
        raise CheckpointError(
            f"{where} is of type {type(value).__qualname__}, which a checkpoint cannot hold: give it as numbers, "
            "text, tensors, or lists and dicts of them"
        ) from error
