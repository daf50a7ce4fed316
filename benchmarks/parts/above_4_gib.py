"""Sums and broadcasts of more than 4 GiB, where lengths of 32 bits end.

    python -m benchmarks.parts.above_4_gib [--only tcp|shared-memory|broadcast] [--json FILE]

    tcp             one worker and one server, without shared memory: a buffer of 4.1 GiB
    shared-memory   two workers on one host: an allocated buffer of 4.1 GiB each
    broadcast       two workers: a state of 4.1 GiB from rank 0

Every byte is checked; bytes 4 GiB apart differ. Needs about 18 GB of free memory. The exit code is 1 if a case fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.testbed.byteps_cluster import Cluster

GIB = 1 << 30
BYTES = 4 * GIB + GIB // 10
BLOCK = 1 << 20
TURNS = 2
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """What the workers call in this module, and how many there are."""

    call: str
    workers: int
    env: dict[str, str]


CASES = {
    "tcp": Case("sums", 1, {"DYNAMIX_SHARED_MEMORY": "0"}),
    "shared-memory": Case("sums", 2, {"DYNAMIX_HOST_SUM": "workers"}),
    "broadcast": Case("broadcast", 2, {}),
}
NEEDED_BYTES = 18 * 10**9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the wrong blocks of each case here")
    args = parser.parse_args()
    available = psutil.virtual_memory().available
    if available < NEEDED_BYTES:
        print(
            f"error: {available / 1e9:.0f} GB of memory are free, needed are {NEEDED_BYTES / 1e9:.0f}", file=sys.stderr
        )
        return 1
    failed = 0
    found: dict[str, int] = {}
    for name, case in CASES.items():
        if args.only not in (None, name):
            continue
        began_s = time.monotonic()
        script = f"from benchmarks.parts.above_4_gib import run; run({case.call!r})"
        try:
            with Cluster(script, case.workers, env=case.env) as cluster:
                ended = [cluster.wait(f"worker-{rank}", LIMIT_S) for rank in range(case.workers)]
            assert not any(one.returncode for one in ended), "\n".join(one.output[-3000:] for one in ended)
            wrong = sum(one.result for one in ended)
        except AssertionError as error:
            print(f"{name}: {error}", flush=True)
            failed += 1
            continue
        print(f"{name}: {wrong} wrong blocks of {BLOCK >> 20} MiB, {time.monotonic() - began_s:.0f} s", flush=True)
        found[name] = wrong
        failed += wrong > 0
    if args.json:
        args.json.write_text(json.dumps({"bytes": BYTES, "failed": failed, "wrong_blocks": found}, indent=2) + "\n")
    return int(failed > 0)


def run(call: str) -> None:
    """A worker. Prints the number of wrong blocks."""
    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps")
    comm.init()
    wrong = {"sums": sums, "broadcast": broadcast}[call](comm)
    comm.shutdown()
    print(json.dumps(wrong))


def sums(comm: Any) -> int:
    import torch

    values = comm.allocate(BYTES, "uint8")
    comm.declare("large")
    wrong = 0
    for turn in range(TURNS):
        fill(values, turn)
        assert comm.wait(comm.push_pull("large", torch.from_numpy(values)), LIMIT_S)
        wrong += wrong_blocks(values, turn, comm.size)
    return wrong


def broadcast(comm: Any) -> int:
    state = b""
    if comm.rank == 0:
        values = np.empty(BYTES, dtype=np.uint8)
        fill(values, 0)
        state = values.tobytes()
        del values
    return wrong_blocks(np.frombuffer(comm.broadcast("state", state), dtype=np.uint8), 0, 1)


def fill(values: NDArray[np.uint8], turn: int) -> None:
    for number, block in blocks(values):
        block[:] = expected(number, turn, len(block))


def wrong_blocks(values: NDArray[np.uint8], turn: int, factor: int) -> int:
    assert len(values) == BYTES, len(values)
    return sum(
        not np.array_equal(block, expected(number, turn, len(block)) * factor) for number, block in blocks(values)
    )


def blocks(values: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    for number, begin in enumerate(range(0, len(values), BLOCK)):
        yield number, values[begin : begin + BLOCK]


def expected(number: int, turn: int, size: int) -> NDArray[np.uint8]:
    """The bytes of one worker, below 114 so that two workers' sum fits; 7 * 4096 is no multiple of 101."""
    return (_PATTERN[:size] + np.uint8((7 * number + 31 * turn) % 101)).astype(np.uint8)


_PATTERN = (np.arange(BLOCK) % 13).astype(np.uint8)

if __name__ == "__main__":
    sys.exit(main())
