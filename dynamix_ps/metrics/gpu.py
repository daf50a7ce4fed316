"""The GPU of this process, from NVIDIA's management library (extra `gpu`), if the machine has a driver."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamix_ps.messages import NAN


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One measurement; NaN is unknown."""

    utilisation: float = NAN  # part of the driver's last sampling period in which a kernel ran, 0..1
    memory_ratio: float = NAN  # memory in use by all processes over the memory of the GPU


class Gpu:
    """The first GPU that is visible to this process."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Never raises. Without the library, a driver or a GPU, samples are unknown."""
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = _find(pynvml, first_device(environ))
            self._nvml = pynvml
        except Exception:  # no package, no driver or no such GPU: nothing to measure
            return

    def sample(self) -> GpuSample:
        """Never raises. The sample of a lost GPU is unknown."""
        if self._nvml is None:
            return GpuSample()
        try:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            return GpuSample(rates.gpu / 100, memory.used / memory.total)
        except (self._nvml.NVMLError, ZeroDivisionError):
            return GpuSample()


def first_device(environ: Mapping[str, str]) -> str:
    """Number or identifier of the first GPU that CUDA shows to a process; empty if it shows none."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = environ.get(name)
        if value is not None and value != "all":
            first = value.split(",")[0].strip()
            return "" if first in ("-1", "none", "void", "NoDevFiles") else first
    return "0"


def gpu_models(driver: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """Model of each GPU of this machine, as NVIDIA's driver names it; none without the driver."""
    found = []
    for file in driver.glob("*/information"):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # gone since the folder was read
        number, model = re.search(r"^Device Minor:\s*(\d+)", text, re.M), re.search(r"^Model:\s*(.+?)\s*$", text, re.M)
        found.append((int(number.group(1)) if number else 0, model.group(1) if model else "unknown"))
    return tuple(model for _, model in sorted(found))


def _find(nvml: Any, device: str) -> Any:
    if device.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    return nvml.nvmlDeviceGetHandleByUUID(device)
