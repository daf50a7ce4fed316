"""Which GPU each worker of a host gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from dynamix_ps.launch.roles.devices import visible_devices


def dealt(workers: int, named: Sequence[int] | None, gpus: int, environ: Mapping[str, str]) -> list[str | None]:
    """What each worker of the host sees; none: what the shell shows."""
    places = (visible_devices(place, workers, named, gpus, environ) for place in range(workers))
    return [one.get("CUDA_VISIBLE_DEVICES") for one in places]


@pytest.mark.parametrize(
    ("workers", "named", "gpus", "environ", "expected"),
    [
        (2, None, 2, {}, ["0", "1"]),
        (3, None, 2, {}, ["0", "1", "0"]),
        (2, None, 0, {}, [None, None]),
        (1, None, 4, {}, [None]),
        (2, (4, 6), 8, {"CUDA_VISIBLE_DEVICES": "0,1"}, ["4", "6"]),
        (1, (3,), 8, {}, ["3"]),
        (2, None, 8, {"CUDA_VISIBLE_DEVICES": "2, GPU-1a"}, ["2", "GPU-1a"]),
        (2, None, 8, {"CUDA_VISIBLE_DEVICES": ""}, [None, None]),
        (2, None, 8, {"CUDA_VISIBLE_DEVICES": "-1"}, ["-1", "-1"]),
    ],
)
def test_workers_of_one_host_do_not_share_its_first_gpu(
    workers: int, named: Sequence[int] | None, gpus: int, environ: Mapping[str, str], expected: list[str | None]
) -> None:
    assert dealt(workers, named, gpus, environ) == expected


def test_numbers_are_those_of_nvidia_smi_unless_the_shell_numbers_them() -> None:
    assert visible_devices(0, 2, None, 2, {})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in visible_devices(0, 2, None, 2, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert "CUDA_DEVICE_ORDER" not in visible_devices(0, 2, None, 2, {"CUDA_VISIBLE_DEVICES": "1,0"})
