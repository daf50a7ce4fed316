"""A program in the kernel: its maps, its functions, and their attachments. All end with this object or this process."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Mapping
from typing import Any

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf.bpf import Map, allow_locked_memory, attach, load_function
from dynamix_ps.metrics.network.ebpf.program import Program, with_descriptors
from dynamix_ps.metrics.network.permission import refused


class LoadedProgram:
    """Loads all functions of a program, and attaches those that have a hook.

    Args:
        types: ctypes of the keys and values of its maps, by name.

    Raises:
        SourceError: the kernel refuses it.
    """

    def __init__(self, program: Program, types: Mapping[str, tuple[Any, Any]]) -> None:
        self.maps: dict[str, Map[Any, Any]] = {}
        self.functions: dict[str, int] = {}  # descriptors
        self._attachments: dict[str, int] = {}  # descriptors by function
        what = "its maps"
        try:
            allow_locked_memory()
            for name, layout in program.maps.items():
                self.maps[name] = Map(layout, *types[name])
            descriptors = [each.descriptor for each in self.maps.values()]
            for name, code in program.functions.items():
                what = name
                self.functions[name] = load_function(name, with_descriptors(code, descriptors))
            for tracepoint, functions in program.hooks.items():
                for name in functions:
                    what = f"{name} at the tracepoint {tracepoint}"
                    self.attach(name, tracepoint)
        except OSError as error:
            self.close()
            if error.errno == errno.EPERM:
                raise refused() from None
            reason = f"the kernel does not take {what}: {error.strerror}"
            raise SourceError(reason, f"report it, with the kernel's version ({platform.release()})") from None

    def attach(self, function: str, tracepoint: str) -> None:
        """Run the function at the events of the tracepoint from now on. Raises OSError."""
        self._attachments[function] = attach(self.functions[function], tracepoint)

    def detach(self, function: str) -> None:
        """Run the function no longer."""
        os.close(self._attachments.pop(function))

    def close(self) -> None:
        """Detach and free everything. Idempotent."""
        for function in tuple(self._attachments):
            self.detach(function)
        for descriptor in self.functions.values():
            os.close(descriptor)
        for each in self.maps.values():
            each.close()
        self.functions, self.maps = {}, {}
