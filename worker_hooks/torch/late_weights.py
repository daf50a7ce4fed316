"""Weights whose step comes after `optimizer.step()` has returned: whoever reads one waits for it.

While a weight is late, its class is `LateWeight`: torch asks this class before it computes with the weight, or shows
it. Some read weights without such a question, so they wait before they begin: a module with its own weights, which it
may give to an extension in C++; the transforms of torch.func; a fork, whose child has the weights as they are then.
Where others might, no weight is late (`LateWeights.refusal`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._functorch import eager_transforms, vmap
from torch.autograd.graph import get_gradient_edge

from worker_hooks.torch import compiled

_ABOUT = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "requires_grad", "ndim")),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "element_size", "is_floating_point")),
}  # what they tell no step changes
_UNSEEN = (  # each transform begins with one of these; modules of torch.jit have weights in C++, and graphs all at once
    *((eager_transforms, f"_{kind}_increment_nesting") for kind in ("grad", "jvp", "func")),
    (vmap, "_vmap_increment_nesting"),
    (torch.jit._recursive, "create_script_module"),
    (torch, "compile"),
)
_FAST = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
_USERS = 2  # of a weight: the parameter, and its node in graphs; of its memory: the weight, and what is kept here
_TELLS_USERS = hasattr(torch.Tensor, "_use_count")  # versions before do not

_owners: dict[torch.Tensor, LateWeights] = {}
_undo: list[Callable[[], object]] = []


class LateWeight(nn.Parameter):
    """A parameter that is to make its step."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        found = list(_tensors_in((args, kwargs)))
        _wait_for(found)
        if LateWeight in map(type, found):  # a signal has come in the middle of its step
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class LateWeights:
    """Those of one training."""

    def __init__(self, read: Callable[[torch.Tensor], None]) -> None:
        """`read` gets a weight that somebody is about to read, and makes its step."""
        self.read = read
        self._memory: dict[torch.Tensor, torch.UntypedStorage] = {}
        self._nodes: dict[torch.Tensor, Any] = {}  # which add gradients to weights; none: of frozen ones

    def refusal(self, parameters: Iterable[nn.Parameter]) -> str:
        """Why somebody might read one of these weights unseen, for people; empty: nobody can."""
        if compiled.is_used():
            return "torch.compile reads weights unseen"
        if not _TELLS_USERS:
            return f"torch {torch.__version__} does not tell who knows a weight"
        for parameter in parameters:
            memory = self._memory.get(parameter)
            if memory is None or memory.is_shared() or not self._is_alone(parameter, memory):
                self._memory.pop(parameter, None)
                del memory
                if reason := self._look(parameter):
                    return reason
        return ""

    def _look(self, parameter: nn.Parameter) -> str:
        """The same for one of them, whose memory is new or known elsewhere."""
        if type(parameter) is not nn.Parameter:
            return f"a weight is a {type(parameter).__name__}, which may be read unseen"
        if parameter.device.type != "cpu":
            return f"weights are on a device ({parameter.device.type}), whose streams may read them unseen"
        memory = parameter.untyped_storage()
        if memory.is_shared():
            return "weights are in memory that other processes may read"
        with torch.inference_mode(False):
            self._nodes[parameter] = get_gradient_edge(parameter).node if parameter.requires_grad else None
        if not self._is_alone(parameter, memory):
            return "the script knows weights by other tensors, arrays or modules of torch.jit, and may read them unseen"
        self._memory[parameter] = memory
        return ""

    def _is_alone(self, parameter: Any, memory: torch.UntypedStorage) -> bool:
        """Whether the parameter is all by which this weight can be read. `memory`: of the weight."""
        node = self._nodes[parameter]
        if node is not None and node.variable is not parameter:
            return False  # torch.utils.swap_tensors
        users = _USERS if node is not None else _USERS - 1
        return parameter._use_count() == users and torch._C._storage_Use_Count(memory._cdata) == _USERS

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """These are late from now on."""
        if not _owners:
            _open()
        for parameter in parameters:
            _owners[parameter] = self
            parameter.__class__ = LateWeight

    def end(self, parameters: Iterable[nn.Parameter]) -> None:
        """These make their steps now."""
        for parameter in parameters:
            if _owners.pop(parameter, None) is not None:
                parameter.__class__ = nn.Parameter
        if not _owners:
            _close()


def _open() -> None:
    _undo.append(nn.modules.module.register_module_forward_pre_hook(_before_forward).remove)
    for place, name in _UNSEEN:
        _wrap(place, name)


def _close() -> None:
    while _undo:
        _undo.pop()()


def _wrap(place: Any, name: str) -> None:
    original = getattr(place, name)

    def wait_and_call(*args: Any, **kwargs: Any) -> Any:
        _wait_for_all()
        return original(*args, **kwargs)

    setattr(place, name, wait_and_call)
    _undo.append(lambda: setattr(place, name, original))


def _before_forward(module: nn.Module, _: Any) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        _wait_for_all()
    elif isinstance(module, _FAST) and not module.training:  # with late weights it would compute otherwise
        _wait_for(module.parameters())
    elif module._parameters:
        _wait_for(module._parameters.values())


def _wait_for_all() -> None:
    _wait_for(tuple(_owners))


os.register_at_fork(before=_wait_for_all)


def _wait_for(found: Iterable[Any]) -> None:
    for one in found:
        if type(one) is LateWeight:
            if (owner := _owners.get(one)) is not None:
                owner.read(one)
            if one not in _owners:  # its step is made, or it is a copy
                one.__class__ = nn.Parameter  # type: ignore[assignment]


def _tensors_in(found: Any) -> Iterator[Any]:
    """Arguments of a function of torch are tensors, and lists and dictionaries of them."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, Mapping):
        for one in found.values():
            yield from _tensors_in(one)
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _tensors_in(one)
