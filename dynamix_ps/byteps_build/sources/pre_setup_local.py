"""BytePS's setup.py imports this file in place of its own pre_setup.py: the supported place to adapt a build."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

JOBS = int(os.environ["DYNAMIX_BUILD_JOBS"])

ucx_path = ""

if importlib.util.find_spec("mxnet"):
    importlib.import_module("numpy_names")  # setup.py imports mxnet next


def extra_make_option() -> str:
    """Arguments for ps-lite's make. `ps` leaves its test programs out."""
    return f"-j{JOBS} ps "


def setup() -> None:
    """Compile the files of an extension side by side; setuptools takes them one by one."""
    from distutils.ccompiler import CCompiler

    def compile_all(
        self: Any,
        sources: Any,
        output_dir: Any = None,
        macros: Any = None,
        include_dirs: Any = None,
        debug: Any = 0,
        extra_preargs: Any = None,
        extra_postargs: Any = None,
        depends: Any = None,
    ) -> Any:
        macros, objects, extra_postargs, options, build = self._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        arguments = self._get_cc_args(options, debug, extra_preargs)

        def compile_one(item: Any) -> None:
            target, (source, suffix) = item
            self._compile(target, source, suffix, arguments, extra_postargs, options)

        # the slowest files come last in BytePS's lists
        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(compile_one, reversed(list(build.items()))))
        return objects

    setattr(CCompiler, "compile", compile_all)  # noqa: B010 (mypy refuses the assignment)
