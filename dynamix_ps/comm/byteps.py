"""The data plane over BytePS: workers push every buffer to the servers and pull the sum into it."""

from __future__ import annotations

import importlib.metadata
import os
from abc import abstractmethod
from typing import Any, ClassVar

from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.comm.base import Comm, interruptible
from dynamix_ps.errors import EnvironmentNotReady

_REQUIRED = (
    "DMLC_ROLE",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_WORKER_ID",
    "BYTEPS_LOCAL_RANK",
    "BYTEPS_LOCAL_SIZE",
)


class BytePSComm(Comm):
    """What BytePS's plugins for all frameworks share."""

    name = "byteps"
    framework: ClassVar[str]

    def init(self) -> None:
        """Join scheduler, servers and the other workers.

        Raises EnvironmentNotReady when BytePS is not installed, this project has not built it for this framework, or
        variables that a launcher sets are missing.
        """
        _check_environment(self.framework)
        self._plugin = plugin = self._load()
        interruptible(lambda: plugin.init(lazy=False))
        self.rank, self.size = plugin.rank(), plugin.size()

    @abstractmethod
    def _load(self) -> Any:
        """The module that has BytePS's init, rank, size and shutdown."""

    def version(self) -> str:
        return importlib.metadata.version("byteps")

    def shutdown(self) -> None:
        """Waits until all workers shut down; servers and scheduler then end too."""
        interruptible(self._plugin.shutdown)


def _check_environment(framework: str) -> None:
    info = installed_info()
    if framework not in info.plugins or not info.ours:
        found = f"found version {info.version} not built by this project" if info.version else "not installed"
        raise EnvironmentNotReady(f"BytePS with its {framework} plugin is needed: {found}.\nNext: dynamix build-byteps")
    missing = [name for name in _REQUIRED if not os.environ.get(name)]
    if missing:
        raise EnvironmentNotReady(
            f"this process is not a BytePS worker: {', '.join(missing)} not set.\n"
            "Next: start it with `dynamix launch` or `dynamix-bpslaunch`, or use comm: local for one process"
        )
    if os.environ["DMLC_NUM_SERVER"] == "0":
        raise EnvironmentNotReady(
            "DMLC_NUM_SERVER is 0, and BytePS needs a server.\nNext: start one, or use comm: gloo, which needs none"
        )
    if os.environ["DMLC_ROLE"] != "worker":
        raise EnvironmentNotReady(
            f"DMLC_ROLE is {os.environ['DMLC_ROLE']!r}, expected 'worker': the hooks belong in the training script.\n"
            "Next: start servers and scheduler with `dynamix-bpslaunch` alone"
        )
