"""Calls between hosts: what a role and a stranger can do, and what can be read on the wire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.testbed import Bed
from benchmarks.testbed.ssh_hosts import unavailable
from tests.hosts.three_hosts import HOSTS, Launchers, ThreeHosts, cluster_file
from tests.launching import HOOK, assert_nothing_left, ends, run_id_in, summary_in, wait_for

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(unavailable() is not None, reason=f"no hosts: {unavailable()}"),
]

# The last worker registers as its settings say, then in the clear.
REGISTERS = """
started()
if rank == 2:
    from dataclasses import replace
    import grpc
    from dynamix_ps.messages import Plan, Registration
    from dynamix_ps.rpc.link import Link, reason
    from worker_hooks.settings import Settings

    access = Settings.from_environment().arbitrator
    me = Registration(rank, "life", "here", os.getpid(), Plan(0, (64, 64, 64)))

    def register(certificates, tries):
        link = Link(replace(access, certificates=certificates), me)
        for _ in range(tries):
            try:
                link.register(None)
            except grpc.RpcError as error:
                said = reason(error)
                time.sleep(0.1)  # the arbitrator may still start
            else:
                return "registered"
        return said

    print("as told:", register(access.certificates, 300), flush=True)
    print("in the clear:", register(None, 1), flush=True)
    print("token:", access.token, flush=True)
finished()
"""
CAPTURES = """
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # all there are
packets.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE: nothing is lost
print("captures", flush=True)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(packets.recv(1 << 16))
"""


@contextmanager
def captured(bed: Bed, host: str, file: Path) -> Iterator[Callable[[], bytes]]:
    """Everything that goes into and out of a host; the function returns what came until now."""
    with bed.popen(host, [sys.executable, "-c", CAPTURES, str(file)], stdout=subprocess.PIPE) as capturing:
        assert capturing.stdout is not None
        assert capturing.stdout.readline() == b"captures\n"

        def until_now() -> bytes:
            address, mark = bed.address(host), b"what came until now"
            send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto({mark!r}, ({address!r}, 9))"
            subprocess.run([*bed.inside(host), sys.executable, "-c", send], check=True)
            wait_for(lambda: mark in file.read_bytes(), "the end of the capture")
            return file.read_bytes()

        try:
            yield until_now
        finally:
            capturing.terminate()


def told(output: str, what: str) -> str:
    return next(line.split(f"{what}: ")[1] for line in output.splitlines() if f"| {what}: " in line)


@pytest.mark.parametrize("insecure", [False, True])
def test_only_roles_of_the_run_can_call_and_nobody_can_read_unless_the_user_says_insecure(
    hosts: ThreeHosts, tmp_path: Path, started: Launchers, insecure: bool
) -> None:
    file = cluster_file(tmp_path, HOOK + REGISTERS, mode="observe")
    with captured(hosts.bed, HOSTS[0], tmp_path / "captured") as until_now:
        started.append(job := hosts.launch(tmp_path, "-c", str(file), *(["--insecure"] if insecure else [])))
        output = ends(job, 0)
        seen = until_now()
    assert told(output, "as told") == "registered"
    assert told(output, "in the clear").startswith("registered" if insecure else "UNAVAILABLE"), output
    assert told(output, "token").encode() not in seen
    assert (b"/dynamix.arbitrator.Arbitrator/Register" in seen) == insecure
    said = "calls between hosts go unencrypted"
    assert (said in output) == insecure
    assert (said in " ".join(summary_in(tmp_path)["degraded"])) == insecure
    assert_nothing_left(run_id_in(output))
