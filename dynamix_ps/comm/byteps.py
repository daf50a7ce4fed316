"""The data plane over BytePS: every buffer is pushed to the servers and their sum pulled back into it."""

from __future__ import annotations

import importlib.metadata
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.comm.base import Comm
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
_SIGNAL_CHECK_S = 0.5  # a wait comes back to Python this often, so that Ctrl-C works


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
        import torch
        from byteps.torch import c_lib, ops

        self._bps = bps
        self._declare = c_lib.byteps_torch_declare_tensor
        self._wait = c_lib.byteps_torch_wait
        # the plugin has one function per tensor type, which are all the same one
        self._push_pull = c_lib.byteps_torch_push_pull_async_torch_FloatTensor
        self._devices = {"cpu", "cuda"} if hasattr(c_lib, _CUDA_FUNCTION) else {"cpu"}
        self._types = {
            torch.float16,
            torch.float32,
            torch.float64,
            torch.uint8,
            torch.int8,
            torch.int32,
            torch.int64,
        }
        _interruptible(lambda: ops.init(lazy=False))
        self.rank, self.size = bps.rank(), bps.size()

    def declare(self, name: str) -> None:
        self._declare(name)

    def push_pull(self, name: str, buffer: Any) -> int:
        """Raises ValueError for a buffer BytePS cannot sum."""
        if buffer.dtype not in self._types or buffer.device.type not in self._devices:
            raise ValueError(
                f"{name}: cannot sum {buffer.dtype} on {buffer.device.type}; "
                f"this build takes {sorted(map(str, self._types))} on {sorted(self._devices)}"
            )
        if not buffer.is_contiguous() or buffer.numel() == 0:
            raise ValueError(f"{name}: needs a contiguous buffer with elements, got shape {tuple(buffer.shape)}")
        return int(self._push_pull(buffer, buffer, False, name, 0, 0))

    def wait(self, handle: int, timeout_s: float) -> bool:
        if self._wait(handle, min(timeout_s, _SIGNAL_CHECK_S)):
            return True
        deadline = time.monotonic() + timeout_s - _SIGNAL_CHECK_S
        while (left_s := deadline - time.monotonic()) > 0:
            if self._wait(handle, min(left_s, _SIGNAL_CHECK_S)):
                return True
        return False

    def version(self) -> str:
        return importlib.metadata.version("byteps")

    def shutdown(self) -> None:
        """Waits until all workers, and through them servers and scheduler, have come here too."""
        _interruptible(self._bps.shutdown)


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
    if os.environ["DMLC_ROLE"] != "worker":
        raise EnvironmentNotReady(
            f"DMLC_ROLE is {os.environ['DMLC_ROLE']!r}, expected 'worker': the hooks belong into the training script.\n"
            "Next: start servers and scheduler with `dynamix-bpslaunch` alone"
        )


def _interruptible(blocking: Callable[[], object]) -> None:
    """Run a call that blocks in C beside the main thread, so that Ctrl-C still works."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            blocking()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="byteps-call", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SIGNAL_CHECK_S)
    if errors:
        raise errors[0]
