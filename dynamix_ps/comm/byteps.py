"""The data plane over BytePS: every buffer is pushed to the servers and their sum pulled back into it."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.comm.base import Comm, check_buffer, interruptible, summable_types
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
    """Buffers are contiguous torch tensors: float16/32/64, uint8, int8/32/64; on the GPU in builds with CUDA."""

    name = "byteps"

    def init(self) -> None:
        """Join scheduler, servers and the other workers.

        Raises EnvironmentNotReady when BytePS is not installed, not built by this project, or when the
        variables a launcher sets are missing.
        """
        _check_environment()
        import byteps.torch as bps
        from byteps.torch import c_lib, ops

        self._bps = bps
        self._declare = c_lib.byteps_torch_declare_tensor
        self._wait_in_c = c_lib.byteps_torch_wait
        # the plugin has one function per tensor type, which are all the same one
        self._push_pull = c_lib.byteps_torch_push_pull_async_torch_FloatTensor
        self._devices = {"cpu", "cuda"} if hasattr(c_lib, _CUDA_FUNCTION) else {"cpu"}
        self._types = summable_types()
        interruptible(lambda: ops.init(lazy=False))
        self.rank, self.size = bps.rank(), bps.size()

    def declare(self, name: str) -> None:
        self._declare(name)

    def push_pull(self, name: str, buffer: Any) -> int:
        """Raises ValueError for a buffer BytePS cannot sum."""
        check_buffer(name, buffer, self._types, self._devices)
        return int(self._push_pull(buffer, buffer, False, name, 0, 0))

    def _wait(self, handle: int, timeout_s: float) -> bool:
        return bool(self._wait_in_c(handle, timeout_s))

    def version(self) -> str:
        return importlib.metadata.version("byteps")

    def shutdown(self) -> None:
        """Waits until all workers, and through them servers and scheduler, have come here too."""
        interruptible(self._bps.shutdown)


_CUDA_FUNCTION = "byteps_torch_push_pull_async_torch_cuda_FloatTensor"


def _check_environment() -> None:
    info = installed_info()
    if "torch" not in info.plugins or not info.ours:
        found = f"found version {info.version} not built by this project" if info.version else "not installed"
        raise EnvironmentNotReady(f"BytePS with its torch plugin is needed: {found}.\nNext: dynamix build-byteps")
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
            f"DMLC_ROLE is {os.environ['DMLC_ROLE']!r}, expected 'worker': the hooks belong into the training script.\n"
            "Next: start servers and scheduler with `dynamix-bpslaunch` alone"
        )
