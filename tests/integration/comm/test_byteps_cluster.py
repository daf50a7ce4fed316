"""Our build of BytePS as real processes: sums, names on one host, cleanup, unmodified scripts."""

from __future__ import annotations

import os
import secrets
import socket
import stat

import pytest

from benchmarks.testbed.byteps_cluster import SHM
from dynamix_ps.launch.cleanup.shared_memory import remove_segments
from tests.forked_cluster import ForkedCluster
from tests.other_user import NOBODY, needs_another_user

pytestmark = pytest.mark.timeout(120)

LIMIT_S = 100.0
STAGED = {"BYTEPS_SCHEDULING_CREDIT": "4"}  # sends host tensors through all stages, as GPU tensors go

SUMS = """
    import json, torch
    import byteps.torch as bps
    from byteps.torch import ops

    bps.init()
    wrong, cases = 0, 0
    for dtype in (torch.float16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64):
        for size in (1, 7, 1003, 2_500_001):  # the last one takes several partitions
            for turn in range(3):
                values = torch.arange(size) % 5 + turn
                buffer = (values * (bps.rank() + 1)).to(dtype)
                ops.synchronize(ops.push_pull_async_inplace(buffer, average=False, name=f"{dtype}-{size}"))
                wrong += int((buffer != (values * sum(range(1, bps.size() + 1))).to(dtype)).sum())
                cases += 1
    print(json.dumps({"wrong": wrong, "cases": cases, "rank": bps.rank(), "size": bps.size()}))
    bps.shutdown()
"""


@pytest.mark.parametrize(
    ("workers", "servers", "env"),
    [
        pytest.param(2, 1, {}, id="direct"),
        pytest.param(3, 2, {"BYTEPS_SERVER_ENGINE_THREAD": "4", "BYTEPS_SERVER_INLINE_BYTES": "0"}, id="two-servers"),
        pytest.param(2, 1, STAGED, id="staged"),
        pytest.param(1, 1, {}, id="one-worker"),
    ],
)
def test_sums(workers: int, servers: int, env: dict[str, str]) -> None:
    with ForkedCluster(SUMS, workers, servers, env) as cluster:
        results = cluster.results(LIMIT_S)
    assert results == [{"wrong": 0, "cases": 72, "rank": rank, "size": workers} for rank in range(workers)]


CHANGING = """
    import json, torch
    import byteps.torch as bps
    from byteps.torch import ops

    bps.init()
    wrong = 0
    for turn in range(300):
        buffer = torch.full((50_000,), float(turn * (bps.rank() + 1)))
        ops.synchronize(ops.push_pull_async_inplace(buffer, average=False, name="x"))
        wrong += int((buffer != turn * 3.0).any())
    segments = {line.split()[5] for line in open("/proc/self/maps") if "/dev/shm/" in line}
    print("summed", flush=True)
    bps.shutdown()
    print(json.dumps({"wrong": wrong, "segments": sorted(segments)}))
"""


def test_two_workers_on_one_host_do_not_share_buffers() -> None:
    with ForkedCluster(CHANGING, env=STAGED) as cluster:
        mine, theirs = cluster.results(LIMIT_S)
    assert mine["wrong"] == theirs["wrong"] == 0
    assert mine["segments"]
    assert not set(mine["segments"]) & set(theirs["segments"])


def test_without_prefixes_they_do() -> None:
    """Whether sums are wrong then is a matter of luck."""
    with ForkedCluster(CHANGING, env=STAGED, shm_prefix=False) as cluster:
        mine, theirs = cluster.results(LIMIT_S)
    assert mine["segments"]
    assert mine["segments"] == theirs["segments"]


WAITING = """
    import json, os, time, torch
    import byteps.torch as bps
    from byteps.torch import ops

    bps.init()
    ops.synchronize(ops.push_pull_async_inplace(torch.ones(1000), average=False, name="x"))
    print("summed", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    bps.shutdown()
    print(json.dumps("done"))
"""


@pytest.mark.parametrize(
    ("env", "segments"),
    [pytest.param({}, 0, id="host tensors need none at all"), pytest.param(STAGED, 2, id="staged")],
)
def test_no_segment_and_no_socket_is_left(env: dict[str, str], segments: int) -> None:
    with ForkedCluster(WAITING, env=env) as cluster:
        for rank in range(2):
            cluster.wait_for(f"worker-{rank}", "summed", LIMIT_S)
        assert len(cluster.segments()) == segments
        assert list(cluster.folder.glob("sockets-*/*"))
        (cluster.folder / "go").touch()
        cluster.results(LIMIT_S)
        assert cluster.segments() == []
        assert not list(cluster.folder.glob("sockets-*/*"))


def test_segments_and_sockets_are_private() -> None:
    with ForkedCluster(WAITING, env=STAGED) as cluster:
        for rank in range(2):
            cluster.wait_for(f"worker-{rank}", "summed", LIMIT_S)
        sockets = [path for path in cluster.folder.glob("sockets-*/*") if path.is_socket()]
        paths = [*sockets, *(SHM / name for name in cluster.segments())]
        assert len(paths) > len(sockets) >= 2
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


@needs_another_user
def test_a_segment_of_another_user_is_refused() -> None:
    prefix = f"dxtest{secrets.token_hex(4)}-"
    foreign = SHM / f"{prefix}BytePS_ShM_0"
    foreign.touch(0o666)
    try:
        os.chown(foreign, NOBODY.pw_uid, NOBODY.pw_gid)
        with ForkedCluster(
            WAITING, workers=1, env={**STAGED, "BYTEPS_SHM_PREFIX": prefix}, shm_prefix=False
        ) as cluster:
            ended = cluster.wait("worker-0", LIMIT_S)
            assert ended.returncode != 0
            assert f"shared memory {foreign.name} belongs to another user" in ended.output
    finally:
        remove_segments(prefix)


def test_segments_of_a_killed_worker_are_removed_by_prefix() -> None:
    with ForkedCluster(WAITING, env=STAGED) as cluster:
        for rank in range(2):
            cluster.wait_for(f"worker-{rank}", "summed", LIMIT_S)
        for rank in range(2):
            cluster.kill(f"worker-{rank}")
        left = cluster.segments()
        assert len(left) == 2
        assert remove_segments(f"{cluster.run_id}-0-") == left[:1]
        assert remove_segments(f"{cluster.run_id}-") == left[1:]
        assert cluster.segments() == []


UNMODIFIED = """
    import copy, json
    from functools import partial
    import byteps.torch as bps
    import torch
    from torch.nn.functional import cross_entropy

    def train(make_optimizer):
        torch.manual_seed(bps.rank())  # different weights, so that the broadcast has something to do
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5)).double()
        plain = make_optimizer(model.parameters(), lr=0.0123456789 * (1 + bps.rank()))
        optimizer = bps.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)

        # the same in one process, on the batches of all workers
        single = copy.deepcopy(model)
        reference = make_optimizer(single.parameters(), lr=0.0123456789)
        reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        generator = torch.Generator().manual_seed(7)
        for step in range(30):
            inputs = torch.randn(bps.size(), 16, 20, generator=generator).double()
            targets = torch.randint(0, 5, (bps.size(), 16), generator=generator)
            optimizer.zero_grad()
            cross_entropy(model(inputs[bps.rank()]), targets[bps.rank()]).backward()
            optimizer.step()
            reference.zero_grad()
            cross_entropy(single(inputs.flatten(0, 1)), targets.flatten()).backward()
            reference.step()
        difference = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), single.parameters()))
        checksum = sum(float(p.detach().sum()) for p in model.parameters())
        return difference, checksum, optimizer.param_groups[0]["lr"]

    bps.init()
    trained = [
        train(partial(torch.optim.SGD, momentum=0.9)),
        train(partial(torch.optim.AdamW, weight_decay=0.1)),
        train(partial(torch.optim.SGD, momentum=0.0)),
    ]
    bps.shutdown()
    print(json.dumps(trained))
"""


def test_unmodified_script_with_several_optimizers() -> None:
    with ForkedCluster(UNMODIFIED) as cluster:
        first, second = cluster.results(LIMIT_S)
    assert first == second
    assert len(first) == 3
    for difference, _, rate in first:
        assert difference < 1e-12
        assert rate == 0.0123456789


def test_speed_can_be_asked() -> None:
    script = """
        import json
        import byteps.torch as bps
        from byteps.torch import ops
        bps.init()
        print(json.dumps(ops._basics.get_pushpull_speed()))
    """
    with ForkedCluster(script, workers=1, servers=1) as cluster:
        assert cluster.wait("worker-0", LIMIT_S).result == [0, -5.0]


def test_failed_worker_ends() -> None:
    script = """
        import byteps.torch as bps
        bps.init(lazy=False)
        if bps.rank() == 1:
            raise ValueError("of this worker")
        import byteps.torch.ops as ops, torch
        ops.declare("x")
        ops.synchronize(ops.push_pull_async_inplace(torch.ones(3), name="x"))
    """
    with ForkedCluster(script) as cluster:
        failed = cluster.wait("worker-1", LIMIT_S)
        assert failed.returncode == 1 and "of this worker" in failed.output


def test_exit_without_waiting() -> None:
    script = """
        import torch
        import byteps.torch as bps
        from byteps.torch import ops
        bps.init()
        for i in range(20):
            ops.synchronize(ops.push_pull_async_inplace(torch.ones(1000), name="x"))
            ops.push_pull_async_inplace(torch.ones(1000), name="nobody-waits")
        print("null")
    """
    with ForkedCluster(script) as cluster:
        assert cluster.results(LIMIT_S) == [None, None]


def may_use_cubic() -> bool:
    with socket.socket() as one:
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            return False
    return True


@pytest.mark.skipif(not may_use_cubic(), reason="the kernel does not allow cubic")
def test_connections_within_a_host_use_cubic() -> None:
    script = """
        import json, os, socket
        import byteps.torch as bps

        bps.init(lazy=False)
        listening, connected = set(), {}
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                one = socket.socket(fileno=os.dup(fd))
                port = one.getsockname()[1]
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening.add(port)
                else:
                    connected[port] = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1))
            except (OSError, IndexError):  # no TCP socket
                pass
        outgoing = [name.decode() for port, name in connected.items() if port not in listening]
        bps.shutdown()
        print(json.dumps(outgoing))
    """
    with ForkedCluster(script, workers=1, servers=2) as cluster:
        (outgoing,) = cluster.results(LIMIT_S)
    assert len(outgoing) >= 3  # to the scheduler and the servers
    assert set(outgoing) == {"cubic"}
