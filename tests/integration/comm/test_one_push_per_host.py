"""Workers of one host push once: sums are exact, and the host's link carries what one worker would send."""

from __future__ import annotations

import pytest

from benchmarks.testbed import Bed, Link, permitted
from dynamix_ps.config import variables
from tests.forked_cluster import ForkedBedCluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(permitted() is not None, reason=f"test bed: {permitted()}")]

HOSTS = {"worker-0": "a", "worker-1": "a", "worker-2": "b", "server-0": "a", "server-1": "c"}
NEAR, FAR = [1.0, 0.0], [0.0, 1.0]  # all pieces on the server of host a, or on that of host c
SUMS, VALUES = 20, 300_007
SCRIPT = f"""
    import hashlib, json, os
    import numpy as np
    import torch
    from dynamix_ps.comm.byteps import comm as byteps
    from dynamix_ps.comm import open_comm

    def begins(sum_, values):
        \"\"\"Where the values of every worker begin: nowhere, at the start, or at places of their own.\"\"\"
        if sum_ % 4 == 0:
            return [0, 0, 0]
        if sum_ % 4 == 1:  # all but one give their last value only
            return [0 if rank == sum_ // 4 % 3 else values - 1 for rank in range(3)]
        return [(values * (3 + 7 * rank + sum_)) // (29 + rank) % values for rank in range(3)]

    def sent_bytes():
        return int(next(line for line in open("/proc/self/net/dev") if "eth0" in line).split(":")[1].split()[8])

    torch.set_num_threads(1)
    byteps.server_shares = lambda *_, **__: np.array(SHARES)
    comm = open_comm("byteps")
    comm.init()
    wrong, sent, digest = [], dict(), hashlib.sha256()
    for values in (1, 5_000, {VALUES}):
        name = f"of {{values}} values"
        comm.declare(name, rounded=values)
        buffer = torch.from_numpy(comm.allocate(values, "float32"))
        pattern = torch.arange(values).remainder_(31).float()  # what half precision holds exactly, summed too
        before = sent_bytes()
        for sum_ in range({SUMS}):
            if os.environ["DYNAMIX_WIRE"] == "auto":
                comm.set_wire(name, comm.wires[sum_ // 3 % 3])
            starts = begins(sum_, values)
            expected = torch.full((values,), -7.0)
            expected[starts[comm.rank]:] = 0
            for rank, start in enumerate(starts):
                begin = max(start, starts[comm.rank])
                expected[begin:] += ((pattern + sum_) * (rank + 1))[begin:]
            buffer.fill_(-7.0)
            buffer[starts[comm.rank]:] = ((pattern + sum_) * (comm.rank + 1))[starts[comm.rank]:]
            assert comm.wait(comm.push_pull(name, buffer, starts[comm.rank]), 60.0), name
            within = float(expected.max()) / 50 if os.environ["DYNAMIX_WIRE"] in ("int8", "auto") else 0.0
            if not torch.allclose(buffer, expected, rtol=0.0, atol=within):
                wrong.append([name, sum_])
            digest.update(buffer[max(starts):].numpy().tobytes())
        whole = sum(1 for sum_ in range({SUMS}) if min(begins(sum_, values)) == 0)
        sent[values] = (sent_bytes() - before) / (4 * values * whole)
    comm.shutdown()
    print(json.dumps([wrong, sent[{VALUES}], digest.hexdigest()]))
"""


@pytest.mark.parametrize("wire", ["float32", "bf16", "int8", "auto"])
@pytest.mark.parametrize("shares", [NEAR, FAR], ids=["near", "far"])
def test_one_push_per_host(shares: list[float], wire: str) -> None:
    with (
        Bed({host: Link() for host in "abc"}) as bed,
        ForkedBedCluster(
            bed,
            SCRIPT.replace("SHARES", str(shares)),
            workers=3,
            servers=2,
            env={variables.WIRE: wire},
            host_of=lambda role: HOSTS.get(role, "c"),
        ) as cluster,
    ):
        results = cluster.results(100.0)
    assert [wrong for wrong, *_ in results] == [[], [], []]
    assert len({digest for *_, digest in results}) == 1, "all get the same"
    if wire == "auto":  # they change it after every third sum
        return
    times_the_buffer = results[0][1] * {"float32": 1, "bf16": 2, "int8": 4 / (1 + 4 / 256)}[wire]
    assert 1.0 < times_the_buffer < 1.6  # two pushes would make it more than 2
