"""A script as a new Python would run it, in a process that has imported modules before."""

from __future__ import annotations

import atexit
import multiprocessing.process
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import numpy as np
import torch

import dynamix_ps
from dynamix_ps import own_process

_DOOR = "dynamix_ps.torch"
Script = list[str]  # arguments of Python, which begin with a file, or with -m and a module


def script_of(found: list[str]) -> Script | None:
    """The script of a command, if it runs in a process that has imported what this one has; else None."""
    arguments = [one for number, one in enumerate(found[1:]) if number or one != "-u"]  # roles have it by a variable
    if os.path.abspath(found[0]) != sys.executable or arguments in ([], ["-m"]):
        return None
    if is_own(arguments):
        return arguments
    if any("mxnet" in argument for argument in arguments):
        return None
    if arguments[0] != "-m":
        file = Path(arguments[0])
        if arguments[0].startswith("-") or not file.is_file() or b"mxnet" in file.read_bytes():
            return None
    return None if _hides_loaded(Path(_folder(arguments)).resolve()) else arguments


def is_own(script: Script) -> bool:
    """Whether it is a program of this project, which imports nothing from its working folder."""
    return script[0] == own_process.FILE


def _hides_loaded(folder: Path) -> bool:
    """Whether a new process would import one of the loaded modules from this folder, where it was not imported from."""
    here = {
        one.name.partition(".")[0]
        for one in folder.iterdir()
        if one.suffix in (".py", ".so", ".pyc") or (one / "__init__.py").exists()
    }
    names = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    origins = (getattr(sys.modules.get(name), "__file__", None) for name in names & here)
    return any(origin is None or folder not in Path(origin).resolve().parents for origin in origins)


def _folder(script: Script) -> str:
    """Where Python looks first for what the script imports."""
    return os.getcwd() if script[0] == "-m" else os.path.dirname(os.path.realpath(script[0]))


def run(script: Script, plain_path: Sequence[str]) -> None:
    """As Python runs a script. Its end is the end of the caller."""
    if not is_own(script):
        _run(script, plain_path)
        return
    code: object = 1
    try:
        _run(script, plain_path)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    finally:
        # Python would now visit all that was imported before the fork, and so copy it: a fifth of a second.
        _end(code if isinstance(code, int) else 1)


def _end(code: int) -> NoReturn:
    """End as Python does, without a visit to what is left in memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(script: Script, plain_path: Sequence[str]) -> None:
    np.random.seed()  # from the system, as in a new process; Python's own generator does so in any fork
    torch.default_generator.seed()
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    sys.excepthook = sys.__excepthook__
    del sys.modules[_DOOR]  # which sets a hook when the script imports it
    del vars(dynamix_ps)[_DOOR.rpartition(".")[2]]
    sys.orig_argv = [sys.executable, *script]
    sys.path[:] = plain_path if getattr(sys.flags, "safe_path", False) else [_folder(script), *plain_path]
    module = ModuleType("__main__")
    vars(module).update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = module
    begun = False
    try:
        if script[0] == "-m":
            sys.argv = ["-m", *script[2:]]
            begun = True
            runpy._run_module_as_main(script[1])  # type: ignore[attr-defined]
        else:
            sys.argv = list(script)
            file = os.path.abspath(script[0])
            loader = SourceFileLoader("__main__", file)
            vars(module).update(__file__=file, __loader__=loader, __cached__=None)
            code = compile(loader.get_data(file), file, "exec", dont_inherit=True)
            begun = True
            exec(code, vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next if begun and error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.excepthook = lambda *_: None  # it is told
        raise
