"""Policies from elsewhere, which a cluster file names as `package.module:Class`.

`constructor_of` checks such a name by the source of the module. It runs nothing of the module and of the packages
around it, so a file that is only checked makes nobody's code run. `class_of` imports the module, when the job starts.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from importlib.util import resolve_name
from inspect import Parameter, Signature
from typing import Any

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import Policy

_BASE = f"{Policy.__module__}.{Policy.__qualname__}"
_MOST_IMPORTS = 8  # from the module that the name has to the one with the class
_Definition = ast.ClassDef | ast.ImportFrom


def constructor_of(name: str) -> Signature | None:
    """What the constructor of a class takes; None where its source alone does not tell.

    Raises:
        PolicyError: there is no such module, or it has no such class, or the class has no base class.
    """
    module, _, attribute = name.partition(":")
    for _ in range(_MOST_IMPORTS):
        spec = _spec_of(module)
        source = _source_of(spec)
        if source is None:
            return None
        found = _definition(source, attribute)
        if isinstance(found, ast.ClassDef):
            if not found.bases:
                raise PolicyError(f"{spec.origin}:{found.lineno}: {_no_policy(attribute)}")
            return _signature(found)
        if found is None:
            raise PolicyError(
                f"{spec.origin} has no class {attribute}; name a class that this file defines, or imports by its name"
            )
        package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
        try:
            module = resolve_name("." * found.level + (found.module or ""), package)
        except ImportError as error:
            raise PolicyError(f"{spec.origin}:{found.lineno}: cannot be imported: {error}") from error
        attribute = next(alias.name for alias in found.names if attribute == (alias.asname or alias.name))
    raise PolicyError(f"{name} is imported from module to module; name the module that defines it")


def class_of(name: str) -> type[Policy]:
    """The class. Imports its module; modules of the current folder are found too, after all others.

    Raises:
        PolicyError: it cannot be imported, or is no subclass of the base class.
    """
    module_name, _, attribute = name.partition(":")
    _spec_of(module_name)
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that other files there hide no module of anybody else
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # it is not our code
        raise PolicyError(f"module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    found: Any = getattr(module, attribute, None)
    if isinstance(found, type) and Policy in found.__mro__:
        return found
    raise PolicyError(f"{module_name} has {found!r:.100} as {attribute}: {_no_policy(attribute)}")


def _no_policy(attribute: str) -> str:
    return f"{attribute} is no subclass of {_BASE}; write class {attribute}(Policy)"


def _spec_of(module: str) -> ModuleSpec:
    """Where a module is, without importing the packages around it, as `importlib.util.find_spec` does."""
    folders: Sequence[str] | None = None
    known, spec = "", None
    for part in module.split("."):
        known = f"{known}.{part}" if known else part
        try:
            spec = _found(known, folders)
            inside = None if spec is None else spec.submodule_search_locations
        except (KeyError, ImportError):  # of a folder without __init__.py within another one, which is not imported
            inside = [os.path.join(folder, part) for folder in folders or ()]
            spec = ModuleSpec(known, None, is_package=True)
        if spec is None:
            break
        folders = [] if inside is None else list(inside)
    if spec is None:
        raise PolicyError(
            f"there is no module {known}; install it, or launch from the folder that it lies in (now {os.getcwd()})"
        )
    return spec


def _found(module: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder in (BuiltinImporter, FrozenImporter):  # modules of the interpreter have no policies, nor sources
            continue
        here = [*sys.path, os.getcwd()] if folders is None and finder is PathFinder else folders
        if spec := finder.find_spec(module, here):
            return spec
    return None


def _source_of(spec: ModuleSpec) -> ast.Module | None:
    """None: it is not written in Python, or is there without its source."""
    read = getattr(spec.loader, "get_source", None)
    try:
        text = read and read(spec.name)
        if text is None:
            return None
        parsed: ast.Module = ast.parse(text)
        compile(parsed, spec.name, "exec", dont_inherit=True)  # finds what parsing does not; does not run it
        return parsed
    except (ImportError, OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PolicyError(f"module {spec.name} cannot be read ({spec.origin}): {error}") from error


def _definition(source: ast.Module, name: str) -> _Definition | None:
    """The last statement of a module, outside of functions and classes, that defines or imports a class."""
    found: _Definition | None = None
    for statement in _statements(source):
        if isinstance(statement, ast.ClassDef):
            names = [statement.name]
        elif isinstance(statement, ast.ImportFrom):
            names = [alias.asname or alias.name for alias in statement.names]
        else:
            continue
        if name in names:
            found = statement
    return found


def _statements(parent: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(parent):
        yield child
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from _statements(child)


def _signature(definition: ast.ClassDef) -> Signature | None:
    """From the constructor as the class has it itself; None: a base class or a decorator may have another."""
    makers = [part for part in definition.body if getattr(part, "name", "") in ("__init__", "__new__")]
    if definition.decorator_list or definition.keywords or len(makers) != 1:
        return None
    maker = makers[0]
    if not isinstance(maker, ast.FunctionDef) or maker.name != "__init__" or maker.decorator_list:
        return None
    given = maker.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    parameters = [
        _parameter(argument, Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(plain, defaults, strict=True)
    ][1:]
    if given.vararg:
        parameters.append(_parameter(given.vararg, Parameter.VAR_POSITIONAL, None))
    parameters += map(_parameter, given.kwonlyargs, [Parameter.KEYWORD_ONLY] * len(given.kwonlyargs), given.kw_defaults)
    if given.kwarg:
        parameters.append(_parameter(given.kwarg, Parameter.VAR_KEYWORD, None))
    return Signature(parameters)


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None) -> Parameter:
    return Parameter(argument.arg, kind, default=Parameter.empty if default is None else _Text(ast.unparse(default)))


class _Text(str):
    """A default as the source has it."""

    __slots__ = ()
    __repr__ = str.__str__
