"""Codecs of gradients on their way, compiled as BytePS is, beside what numpy makes of the same values."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dynamix_ps.comm.byteps.exchange import WIRES
from tests.compiled import compiled
from tests.unit.byteps_build.sources_tree import STUBS, write_tree

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

Values = NDArray[np.float32]
BLOCK = 256
NAMES = list(WIRES)


@dataclass(frozen=True, slots=True)
class Codes:
    """What a codec has made of rounds of values."""

    code: NDArray[np.uint8]  # (rounds, bytes)
    decoded: Values  # (rounds, values that travel)
    left: Values  # (rounds, values)


def codes(folder: Path, wire: str, rounds: Any, begin: int = 0) -> Codes:
    """`rounds`: values (rounds, values), of which those before `begin` do not travel."""
    write_tree(folder)
    flags = ["-std=c++11", "-Wall", "-Ofast", "-fno-strict-aliasing", f"-I{folder}", f"-I{STUBS}"]
    program = compiled(Path(__file__).parent / "wire" / "codes.cc", flags)
    values = np.asarray(rounds, np.float32)
    arguments = [program, str(WIRES[wire]), str(begin), str(values.shape[1])]
    done = subprocess.run(arguments, input=values.tobytes(), capture_output=True, timeout=60, check=True)
    table = np.frombuffer(done.stdout, np.uint8).reshape(len(values), -1)
    in_code = table.shape[1] - 4 * (2 * values.shape[1] - begin)
    parts = np.split(table, [in_code, in_code + 4 * (values.shape[1] - begin)], axis=1)
    return Codes(parts[0], *(np.ascontiguousarray(part).view(np.float32) for part in parts[1:]))


def half_step(wire: str, wanted: Values) -> Values:
    """What rounding may take away from each of these values: (values,)."""
    if wire == "bf16":
        return np.abs(wanted) * np.float32(2**-8)
    largest = [np.abs(wanted[begin : begin + BLOCK]).max() for begin in range(0, len(wanted), BLOCK)]
    return np.repeat(np.array(largest, np.float32), BLOCK)[: len(wanted)] / 254


@pytest.mark.parametrize("wire", NAMES)
@pytest.mark.parametrize(("count", "begin"), [(1, 0), (255, 0), (256, 255), (257, 256), (1000, 0), (1000, 300)])
def test_a_code_is_within_half_a_step_of_its_values(tmp_path: Path, wire: str, count: int, begin: int) -> None:
    random = np.random.default_rng(count + begin)
    scales = np.repeat(10.0 ** random.uniform(-30, 30, 1 + count // BLOCK), BLOCK)[:count]  # of each block
    values = (random.normal(size=count) * scales * 10.0 ** random.uniform(-3, 0, count)).astype(np.float32)
    found = codes(tmp_path, wire, [values], begin)
    wanted = np.where(np.arange(count) < begin, 0, values).astype(np.float32)
    allowed = (half_step(wire, wanted) * (1 + 1e-5))[begin:]
    assert np.all(np.abs(found.decoded[0] - wanted[begin:]) <= allowed)
    assert np.all(np.abs(found.left[0][begin:] - (wanted[begin:] - found.decoded[0])) <= 1e-5 * allowed)
    assert not found.left[0][:begin].any(), "what does not travel leaves nothing out"
    first = begin // BLOCK * BLOCK
    size = 2 * (count - begin) if wire == "bf16" else count - first + 4 * len(range(first, count, BLOCK))
    assert found.code.shape[1] == size


def test_the_code_of_a_block_is_its_step_and_numbers_of_steps(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=600).astype(np.float32)
    found, at = codes(tmp_path, "int8", [values], begin=300), 0
    for begin, end in ((256, 512), (512, 600)):
        block = np.where(np.arange(600) < 300, 0, values)[begin:end]
        (step,) = found.code[0][at : at + 4].view(np.float32)
        numbers = found.code[0][at + 4 : at + 4 + end - begin].view(np.int8)
        assert step == pytest.approx(np.abs(block).max() / 127, rel=1e-6)
        assert np.abs(numbers - block / step).max() <= 0.5 + 1e-4 and np.abs(numbers).max() == 127
        assert np.array_equal(
            (numbers * step)[max(0, 300 - begin) :], found.decoded[0][max(300, begin) - 300 : end - 300]
        )
        at += 4 + end - begin
    assert at == found.code.shape[1]


@pytest.mark.parametrize("wire", NAMES)
def test_what_a_code_leaves_out_comes_later(tmp_path: Path, wire: str) -> None:
    random = np.random.default_rng(1)
    rounds = (random.normal(size=300) + 0.1 * random.normal(size=(400, 300))).astype(np.float32)
    found = codes(tmp_path, wire, rounds)
    missing = rounds.sum(0, np.float64) - found.decoded.sum(0, np.float64)
    assert np.all(np.abs(missing - found.left[-1]) < 1e-4)
    assert np.all(np.abs(missing) <= half_step(wire, rounds[-1] + found.left[-2]) + 1e-4)
    once = np.abs(rounds[0] - found.decoded[0]).max()
    assert np.abs(missing).max() < 3 * once, "after 400 rounds not more than after a few"


@pytest.mark.parametrize("wire", NAMES)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3.4e38])
def test_what_is_not_finite_is_seen(tmp_path: Path, wire: str, odd: float) -> None:
    rounds = np.random.default_rng(2).normal(size=(4, 600)).astype(np.float32)
    rounds[1:3, 300] = odd
    found = codes(tmp_path, wire, rounds)
    of_block = slice(256, 512) if wire == "int8" else slice(300, 301)
    finite = np.isfinite(found.decoded)
    assert not finite[1:3, of_block].any()
    finite[1:3, of_block] = True
    assert finite.all() and np.isfinite(found.left).all()


def test_values_too_small_for_a_step_are_kept_for_later(tmp_path: Path) -> None:
    found = codes(tmp_path, "int8", np.full((2, 3), 1e-36, np.float32))
    assert not found.decoded[0].any() and np.allclose(found.decoded[1], 2e-36, rtol=1e-5, atol=0)
