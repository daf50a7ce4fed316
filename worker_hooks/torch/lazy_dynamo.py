"""torch loads its compiler only where something is compiled.

The first optimizer of a process imports `torch._dynamo`, to say what must not be compiled. That takes nearly as long as
the rest of torch. As long as nothing is compiled there is nothing to say. So it is loaded when something else of it is
wanted: by `torch.compile`, or by whoever imports a part of it. A script sees no difference.

Python has the mechanism (importlib.util.LazyLoader), but it loads a module for anything that is wanted of it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import FunctionType, ModuleType
from typing import Any

NAME = "torch._dynamo"
_loading = threading.RLock()


def install() -> None:
    """From now on `import torch._dynamo` waits with loading it. Where it is loaded already, nothing changes."""
    if NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def loaded() -> ModuleType | None:
    """The module, if something needs it so far."""
    module = sys.modules.get(NAME)
    return None if isinstance(module, _Waiting) else module


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(LazyLoader):
    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._real = loader

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._real
        module.__class__ = _Waiting


class _Waiting(ModuleType):
    """The module before it is loaded. What training without a compiler wants of it is here."""

    def __getattribute__(self, name: str) -> Any:
        if name == "graph_break":
            return _nothing
        if name == "disable":
            return _disable
        if name == "trace_rules":
            return _RULES
        if name.startswith("__") and name != "__path__":  # who imports a part of the module asks for its path
            return super().__getattribute__(name)
        _load(self)
        return getattr(self, name)


class _Rules:
    """What is compiled and how. A process group forgets what the compiler has looked up of it: nothing so far."""

    def clear_lru_cache(self) -> None:
        if (module := loaded()) is not None:
            module.trace_rules.clear_lru_cache()

    def __getattr__(self, name: str) -> Any:
        _load(sys.modules[NAME])
        return getattr(sys.modules[NAME].trace_rules, name)


_RULES = _Rules()


def _load(module: ModuleType) -> None:
    with _loading:
        if type(module) is not _Waiting:
            return
        module.__class__ = ModuleType  # type: ignore[assignment]  # of what is no longer waiting
        spec = module.__spec__
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(module)


def _nothing(*arguments: Any, **options: Any) -> None:
    """No graph is made that could break."""


def _disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
    """`function` as one that is not compiled; as it is, as long as nothing is."""
    if not isinstance(function, FunctionType):
        _load(sys.modules[NAME])
        return sys.modules[NAME].disable(function, recursive, **options)
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if (module := loaded()) is None:
                return function(*arguments, **keywords)
            disabled = module.disable(function, recursive, **options)
        return disabled(*arguments, **keywords)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch's own mark of what it may not look into
    return call
