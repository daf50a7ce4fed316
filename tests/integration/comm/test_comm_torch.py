"""Sums of torch buffers over real BytePS: every type and path, buffers that take part in part, long broadcasts.

Also sums in fewer bytes, over BytePS and over a ring.
"""

from __future__ import annotations

import pytest

from tests.forked_cluster import ForkedCluster

LIMIT_S = 100.0
pytestmark = pytest.mark.timeout(150)

PATHS = {
    "workers sum in shared memory": {},
    "servers sum in shared memory": {"DYNAMIX_HOST_SUM": "server"},
    "tcp": {"DYNAMIX_SHARED_MEMORY": "0"},
}

SUMS = """
    import json
    import torch
    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    rank, size = comm.rank, comm.size
    wrong = cases = 0
    for dtype in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64"):
        for length in (1, 7, 1003, 250_001):
            for memory in ("shared", "own"):
                name = f"{dtype}-{length}-{memory}"
                comm.declare(name)
                if memory == "shared":
                    buffer = torch.from_numpy(comm.allocate(length, dtype))
                else:
                    buffer = torch.zeros(length, dtype=getattr(torch, dtype))
                for turn in range(4):
                    values = torch.arange(length) % 5 + turn
                    mine = (values * (rank + 1)).to(buffer.dtype)
                    buffer.copy_(mine)
                    begins = [(turn * 7 * (worker + 1) * length) // 40 % (length + 1) for worker in range(size)]
                    expected = torch.zeros(length, dtype=torch.int64)
                    for worker, begin in enumerate(begins):
                        expected[begin:] += values[begin:] * (worker + 1)
                    expected = expected.to(buffer.dtype)
                    expected[: begins[rank]] = mine[: begins[rank]]
                    assert comm.wait(comm.push_pull(name, buffer, begins[rank]), 60.0), name
                    wrong += int((buffer != expected).sum())
                    cases += 1
    data = bytes(range(256)) * 80_000  # more than one chunk
    broadcast = comm.broadcast("state", data if rank == 0 else b"ignored") == data
    comm.shutdown()
    print(json.dumps({"wrong": wrong, "cases": cases, "broadcast": broadcast}))
"""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2)])
def test_sums(path: str, workers: int, servers: int) -> None:
    with ForkedCluster(SUMS, workers, servers, env=PATHS[path]) as cluster:
        assert cluster.results(LIMIT_S) == [{"wrong": 0, "cases": 224, "broadcast": True}] * workers


RELEASE = """
    import json
    import psutil
    import torch
    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps")
    comm.init()
    resident = []
    for turn in range(12):
        memory = comm.allocate(2_000_000, "float32")
        comm.declare(f"x{turn}")
        memory[:] = 1
        assert comm.wait(comm.push_pull(f"x{turn}", torch.from_numpy(memory)), 60.0)
        assert (memory == comm.size).all()
        comm.release(memory)
        del memory
        resident.append(psutil.Process().memory_info().rss)
    comm.shutdown()
    print(json.dumps((resident[-1] - resident[2]) / 8_000_000))
"""


@pytest.mark.parametrize("path", list(PATHS)[:2])
def test_released_memory_is_freed(path: str) -> None:
    with ForkedCluster(RELEASE, env=PATHS[path]) as cluster:
        assert max(cluster.results(LIMIT_S)) < 2, "buffers that stay"


WIRE = """
    import hashlib, json
    import torch
    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("COMM")
    comm.init()
    rank, size = comm.rank, comm.size
    ROUNDED, LENGTH, TURNS = 299_000, 300_000, 40
    comm.declare("x", rounded=ROUNDED)
    random = torch.Generator().manual_seed(0)
    exact = True
    missing = torch.zeros(LENGTH, dtype=torch.float64)
    same = [torch.randn(LENGTH, generator=random) for _ in range(size)]
    for turn in range(TURNS):
        parts = [part.clone() for part in same]
        begin = 1000 if rank == 1 and turn % 4 == 3 else 0
        if turn % 4 == 3:
            parts[1][:1000] = 0
        buffer = parts[rank].clone()
        assert comm.wait(comm.push_pull("x", buffer, begin), 60.0)
        wanted = torch.stack(parts).double().sum(0)
        exact &= torch.allclose(buffer[ROUNDED:].double(), wanted[ROUNDED:], atol=1e-6)
        missing += wanted - buffer.double()
        if turn == 0:
            first_error = float((buffer.double() - wanted).abs().max())
    digest = hashlib.sha256(buffer[1000:].numpy().tobytes()).hexdigest()
    mean_error = float(missing[1000:ROUNDED].abs().max()) / TURNS
    odd = torch.ones(LENGTH)
    if rank == 1:
        odd[7], odd[ROUNDED // 2] = float("nan"), float("inf")
    assert comm.wait(comm.push_pull("x", odd), 60.0)
    seen = not torch.isfinite(odd[[7, ROUNDED // 2]]).any() and float(torch.isfinite(odd).double().mean()) > 0.99
    comm.shutdown()
    told = {"digest": digest, "exact": exact, "error": first_error, "mean_error": mean_error, "seen": bool(seen)}
    print(json.dumps(told))
"""


@pytest.mark.parametrize(("comm", "workers", "servers"), [("byteps", 2, 1), ("byteps", 3, 2), ("gloo", 3, 0)])
@pytest.mark.parametrize(("wire", "error"), [("bf16", 0.06), ("int8", 0.12)])
def test_fewer_bytes_on_the_wire(comm: str, workers: int, servers: int, wire: str, error: float) -> None:
    """Counts in the trailer arrive as they are; what rounding takes away comes later; all workers get the same."""
    env = {**PATHS["tcp"], "DYNAMIX_WIRE": wire}
    with ForkedCluster(WIRE.replace("COMM", comm), workers, servers, env=env) as cluster:
        results = cluster.results(LIMIT_S)
    assert len({result["digest"] for result in results}) == 1
    assert all(result["exact"] for result in results)
    assert all(error / 10 < result["error"] < error for result in results)
    assert max(result["mean_error"] for result in results) < error / 20
    assert all(result["seen"] for result in results), "values that are not finite"


CHANGING = """
    import hashlib, json
    import torch
    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("COMM")
    comm.init()
    rank, size = comm.rank, comm.size
    SIZES = {"a": (299_000, 300_000), "b": (40_000, 40_000)}
    for name, (rounded, length) in SIZES.items():
        comm.declare(name, rounded=rounded)
    random = torch.Generator().manual_seed(0)
    told = []
    for wire in ("float32", "int8", "bf16", "float32", "bf16", "int8", "float32"):
        for name in SIZES:
            comm.set_wire(name, wire)
        for _ in range(3):
            parts = {name: [torch.randn(two[1], generator=random) for _ in range(size)] for name, two in SIZES.items()}
            buffers = {name: parts[name][rank].clone() for name in SIZES}
            handles = [comm.push_pull(name, buffer) for name, buffer in buffers.items()]
            assert all(comm.wait(handle, 60.0) for handle in handles)
        digest, worst = hashlib.sha256(), 0.0
        for name, (rounded, length) in SIZES.items():
            digest.update(buffers[name].numpy().tobytes())
            error = (buffers[name].double() - torch.stack(parts[name]).double().sum(0)).abs()
            assert rounded == length or float(error[rounded:].max()) < 1e-6, "behind the gradients"
            worst = max(worst, float(error.max()))
        told.append([wire, digest.hexdigest(), worst])
    wires = comm.wires
    comm.shutdown()
    print(json.dumps({"told": told, "wires": wires}))
"""


@pytest.mark.parametrize(
    ("comm", "servers", "more"), [("byteps", 2, {}), ("byteps", 2, {"DYNAMIX_ELASTIC": "1"}), ("gloo", 0, {})]
)
def test_the_wire_changes_between_two_sums(comm: str, servers: int, more: dict[str, str]) -> None:
    """Each sum has the precision of its wire, whichever came before, and the same bits on all workers."""
    env = {**PATHS["tcp"], "DYNAMIX_WIRE": "auto", **more}
    with ForkedCluster(CHANGING.replace("COMM", comm), 3, servers, env=env) as cluster:
        results = cluster.results(LIMIT_S)
    assert all(result["wires"] == ["float32", "bf16", "int8"] for result in results)
    for (wire, digest, worst), *others in zip(*(result["told"] for result in results), strict=True):
        assert all(other[1] == digest for other in others), f"not the same bits with {wire}"
        low, high = {"float32": (0.0, 1e-6), "bf16": (1e-3, 0.06), "int8": (0.06, 0.3)}[wire]
        assert low <= worst < high, wire


def test_gradients_in_shared_memory_have_one_wire() -> None:
    script = CHANGING.split("    SIZES", maxsplit=1)[0] + "    comm.shutdown()\n    print(json.dumps(comm.wires))\n"
    with ForkedCluster(script.replace("COMM", "byteps"), 2, 1, env={"DYNAMIX_WIRE": "auto"}) as cluster:
        assert cluster.results(LIMIT_S) == [[], []]
