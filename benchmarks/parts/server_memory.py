"""Resident memory of servers while workers sum the gradients of a model over TCP.

    python -m benchmarks.parts.server_memory [--model-mb 256] [--iterations 1000] [--servers 2] [--json FILE]

Two workers broadcast a state of the model's size, then sum its buckets in every iteration. The bar: at no time more
than 2.2 times the server's part of the model above what the server had before the first sum, no growth after iteration
20, and of the broadcast no more than a chunk. The exit code is 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.testbed.byteps_cluster import Cluster

WORKERS = 2
LIMIT_S = 300.0  # between two readings
MOST = 2.2  # times the server's part
ALLOWED_BYTES = 24 << 20  # for one chunk of a broadcast, whose memory is used again, and the allocator
BUCKET_BYTES = 4 << 20
SETTLED = 20  # iteration after which nothing grows
BEFORE, BROADCAST = "before", "broadcast"  # readings: before the first sum, after the broadcast
TCP = {"DYNAMIX_SHARED_MEMORY": "0"}
_SCRIPT = "from benchmarks.parts.server_memory import worker; worker({model}, {state}, {iterations}, {read_at})"


def readings(
    model_bytes: int, state_bytes: int, read_at: Sequence[int], servers: int = 1
) -> Iterator[tuple[str, list[int]]]:
    """(when, resident bytes of every server): before, after the broadcast, and after each iteration of `read_at`.

    No message is on its way at these times.
    """
    script = _SCRIPT.format(model=model_bytes, state=state_bytes, iterations=read_at[-1], read_at=list(read_at))
    with Cluster(script, WORKERS, servers, TCP) as cluster:
        processes = [psutil.Process(cluster.pid(f"server-{rank}")) for rank in range(servers)]
        for when in (BEFORE, BROADCAST, *map(str, read_at)):
            for rank in range(WORKERS):
                cluster.wait_for(f"worker-{rank}", f"at {when}\n", LIMIT_S)
            yield when, [process.memory_info().rss for process in processes]
            (cluster.folder / f"go-{when}").touch()
        cluster.results(LIMIT_S)


def worker(model_bytes: int, state_bytes: int, iterations: int, read_at: Sequence[int]) -> None:
    """What a worker runs. It says `at WHEN` and goes on when the file `go-WHEN` is there."""
    import torch

    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    pause(BEFORE)
    state = bytes(range(256)) * (state_bytes // 256)
    assert comm.broadcast("state", state if comm.rank == 0 else b"") == state
    del state
    pause(BROADCAST)
    buckets = [torch.empty(BUCKET_BYTES // 4) for _ in range(model_bytes // BUCKET_BYTES)]
    for number in range(len(buckets)):
        comm.declare(f"bucket-{number}")
    for iteration in range(1, iterations + 1):
        handles = [comm.push_pull(f"bucket-{n}", bucket.fill_(iteration)) for n, bucket in enumerate(buckets)]
        assert all(comm.wait(handle, LIMIT_S) for handle in handles)
        assert all(int(bucket[-1]) == WORKERS * iteration for bucket in buckets)
        if iteration in read_at:
            pause(str(iteration))
    comm.shutdown()
    print(json.dumps("done"))


def pause(when: str) -> None:
    print(f"at {when}", flush=True)
    while not Path(f"go-{when}").exists():
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-mb", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all readings here")
    args = parser.parse_args()
    model_bytes = args.model_mb << 20
    part_bytes = model_bytes / args.servers
    steps = sorted({1, 10, SETTLED, *range(50, args.iterations, 50), args.iterations})
    taken: dict[str, list[int]] = {}
    for when, sizes in readings(model_bytes, model_bytes, steps, args.servers):
        taken[when] = sizes
        above = (f"{(size - base) / part_bytes:5.2f}" for size, base in zip(sizes, taken[BEFORE], strict=True))
        print(
            f"{when:>9}: {'  '.join(f'{size / 2**20:6.0f} MiB' for size in sizes)}; parts: {'  '.join(above)}",
            flush=True,
        )
    missed = problems(taken, part_bytes)
    print("\n".join(missed) or f"at most {MOST} parts, no growth, little left of the broadcast")
    if args.json:
        args.json.write_text(json.dumps(taken, indent=2) + "\n")
    return int(bool(missed))


def problems(taken: dict[str, list[int]], part_bytes: float) -> list[str]:
    """What misses the bar, one line each."""
    found = []
    for rank, base in enumerate(taken[BEFORE]):
        above = {when: sizes[rank] - base for when, sizes in taken.items()}
        if above[BROADCAST] > ALLOWED_BYTES:
            found.append(f"server {rank}: the broadcast leaves {above[BROADCAST] / 2**20:.0f} MiB")
        if max(above.values()) > MOST * part_bytes + ALLOWED_BYTES:
            found.append(
                f"server {rank}: {max(above.values()) / part_bytes:.2f} times its part, at most {MOST} allowed"
            )
        later = max(size for when, size in above.items() if when.isdigit() and int(when) >= SETTLED)
        growth = later - above[str(SETTLED)]
        if growth > ALLOWED_BYTES:
            found.append(f"server {rank}: grows by {growth / 2**20:.0f} MiB after iteration {SETTLED}")
    return found


if __name__ == "__main__":
    sys.exit(main())
