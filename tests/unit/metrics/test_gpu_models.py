"""The GPUs that NVIDIA's driver names."""

from __future__ import annotations

from pathlib import Path

from dynamix_ps.metrics.gpu import gpu_models


def test_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for bus, number, model in (("0000:01:00.0", 1, "NVIDIA A30"), ("0000:02:00.0", 0, "Tesla V100-SXM2-16GB")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 42\nDevice Minor: \t {number}\n")
    assert gpu_models(tmp_path) == ("Tesla V100-SXM2-16GB", "NVIDIA A30")
    assert gpu_models(tmp_path / "none") == ()
