"""The sum in shared memory, by threads in place of processes."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.parts.references.memory_floor import MemoryFloor, build, segment_bytes


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("floor"))


@pytest.mark.parametrize("values", [1, 15, 1024, 5000])
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_every_buffer_has_the_sum(library: Path, tmp_path: Path, values: int, processes: int) -> None:
    segment = tmp_path / "segment"
    segment.write_bytes(bytes(segment_bytes(values, processes)))
    parts = [MemoryFloor(library, segment, values, processes, rank) for rank in range(processes)]
    expected = np.zeros(values, np.float32)
    for rank, part in enumerate(parts):
        part.buffer[:] = np.arange(values) * 10.0**rank
        expected += part.buffer

    def run(part: MemoryFloor) -> None:
        part.sum()
        part.sum()

    threads = [threading.Thread(target=run, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for part in parts:
        np.testing.assert_array_equal(part.buffer, expected * processes)


def test_a_compiler_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SystemExit, match=r"memory_floor\.c failed"):
        build(tmp_path)
