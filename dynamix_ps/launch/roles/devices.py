"""Which GPU each worker of a host gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def visible_devices(
    place: int, workers: int, named: Sequence[int] | None, gpus: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of a worker, so that workers of one host do not all compute on its first GPU.

    A worker sees one GPU: one that the cluster file names, else one that the launcher's shell shows to CUDA, else one
    of all. A worker that is alone on its host sees all that the shell shows, unless the file names its GPU.

    Args:
        place: index of the worker among the workers of its host.
        workers: number of workers on the host.
        named: numbers of the GPUs that the cluster file names.
        gpus: number of GPUs of the machine.
    """
    shown = environ.get(VISIBLE)
    if named:
        devices, own_order = [str(number) for number in named], True
    elif shown is not None:
        devices, own_order = [one.strip() for one in shown.split(",") if one.strip()], False
    else:
        devices, own_order = [str(number) for number in range(gpus)], True
    if not devices or (workers == 1 and not named):
        return {}
    found = {VISIBLE: devices[place % len(devices)]}
    if own_order and ORDER not in environ:
        found[ORDER] = "PCI_BUS_ID"  # the numbers of nvidia-smi; CUDA's own put the fastest GPU first
    return found
