"""What travels in fewer bytes, beside a reference in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dynamix_ps.comm.ring.codecs import BLOCK, CODECS

Floats = NDArray[np.float32]


def bf16(values: Floats) -> Floats:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


def int8(values: Floats) -> Floats:
    blocks = values.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    steps = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    return (steps * scales).astype(np.float32).ravel()


REFERENCES: dict[str, Callable[[Floats], Floats]] = {"bf16": bf16, "int8": int8}


def half_a_step(name: str, values: Floats) -> Floats:
    """Half the distance of two neighbours that can be sent, at every value."""
    if name == "bf16":
        return np.exp2(np.floor(np.log2(np.abs(values, where=values != 0, out=np.ones_like(values)))) - 8)
    return np.repeat(np.abs(values.reshape(-1, BLOCK)).max(1) / 127, BLOCK) * np.float32(0.50001)


def through(name: str, values: torch.Tensor, wanted: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(decoded, left out); `wanted`: so many values at the beginning are decoded."""
    codec, left = CODECS[name], values.clone()
    encoded = torch.zeros(len(values) // BLOCK * codec.block_bytes, dtype=torch.uint8)
    codec.encode(left, encoded)
    decoded = torch.full((len(values) if wanted is None else wanted,), 7.0)
    codec.decode(encoded, decoded)
    return decoded, left


def made(seed: int = 0, blocks: int = 40) -> torch.Tensor:
    """Blocks of very different magnitudes, zeros, and ties."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((blocks, BLOCK)) * 10.0 ** generator.uniform(-30, 30, (blocks, 1))
    values[1], values[2] = 0, np.arange(BLOCK) - 127.5
    return torch.from_numpy(values.astype(np.float32).ravel())


@pytest.mark.parametrize("name", CODECS)
def test_rounded_to_the_nearest(name: str) -> None:
    values = made()
    decoded, left = through(name, values)
    assert (np.abs((decoded - values).numpy()) <= half_a_step(name, values.numpy())).all()
    rtol = 1e-5 if name == "int8" else 0
    np.testing.assert_allclose(decoded.numpy(), REFERENCES[name](values.numpy()), rtol)
    assert torch.equal(left, values - decoded), "what is left out is what is missing"


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("wanted", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_beginning_is_decoded_as_the_whole(name: str, wanted: int) -> None:
    values = made()[: 3 * BLOCK]
    assert torch.equal(through(name, values, wanted)[0], through(name, values)[0][:wanted])


@pytest.mark.parametrize("name", CODECS)
def test_feedback_adds_up(name: str) -> None:
    """What is sent in many rounds is what was to be sent, but for less than a step of the last one."""
    values, sent, left = made(1).double(), 0.0, torch.zeros(40 * BLOCK)
    for _ in range(50):
        decoded, left = through(name, left + values.float())
        sent = sent + decoded.double()
    biggest = np.abs(values.numpy().reshape(-1, BLOCK)).max(1).repeat(BLOCK)
    assert (np.abs((sent - 50 * values).numpy()) <= 0.02 * biggest).all()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_arrives_so_and_is_not_kept(name: str, bad: float) -> None:
    values = made()
    values[5 * BLOCK + 3] = bad
    decoded, left = through(name, values)
    assert not decoded[5 * BLOCK + 3].isfinite()
    assert not decoded[5 * BLOCK : 6 * BLOCK].isfinite().any() or name == "bf16"
    assert decoded[: 5 * BLOCK].isfinite().all() and decoded[6 * BLOCK :].isfinite().all()
    assert left.isfinite().all()


@pytest.mark.parametrize("largest", [1e-44, 1e-38, 1.5e-36, 1.7e38])
def test_a_block_of_the_smallest_and_largest_magnitudes(largest: float) -> None:
    values = torch.linspace(-largest, largest, BLOCK)
    decoded, left = through("int8", values)
    assert decoded.isfinite().all()
    assert torch.equal(decoded + left, values), "too small to be sent: kept"
