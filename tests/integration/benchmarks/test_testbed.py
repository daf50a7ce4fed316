"""The test bed shapes TCP traffic as configured, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from benchmarks.testbed import Bed, Link, permitted
from benchmarks.testbed.relay import Relay
from tests.launching import ROOT, environment, wait_for

pytestmark = [pytest.mark.timeout(60), pytest.mark.alone]

LIMIT_S = 30.0
MEGABYTES = 30

RECEIVER = """
import socket
listening = socket.create_server(("::", 7001), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
while True:
    connection, _ = listening.accept()
    received = 0
    while data := connection.recv(1 << 20):
        received += len(data)
    connection.sendall(str(received).encode())
    connection.close()
"""

SENDER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7001))
data, began_s = bytes(1 << 20), time.monotonic()
for _ in range(int(sys.argv[2])):
    connection.sendall(data)
connection.shutdown(socket.SHUT_WR)
received = int(connection.recv(100))
info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
congestion = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(bytes(1)).decode()
number = lambda at: int.from_bytes(info[at:at + 4], "little")
print(received, number(100), number(216), time.monotonic() - began_s, congestion)
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """One transfer; counters are those of the sender's TCP_INFO."""

    received_bytes: int
    retransmits: int
    needless: int  # segments that came twice, as the receiver told (tcpi_dsack_dups)
    duration_s: float
    congestion: str


@pytest.fixture
def receiver(bed: Bed) -> None:
    process = bed.popen("server", [sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"


def send(bed: Bed, host: str, address: str, megabytes: int = MEGABYTES) -> Sent:
    command = [sys.executable, "-c", SENDER, address, f"{megabytes}"]
    said, _ = bed.popen(host, command, stdout=subprocess.PIPE, text=True).communicate(timeout=LIMIT_S)
    received, retransmits, needless, duration, congestion = said.split()
    assert int(received) == megabytes << 20
    return Sent(int(received), int(retransmits), int(needless), float(duration), congestion)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_every_lost_packet_is_sent_again(bed: Bed, receiver: None, family: str) -> None:
    address = bed.address("server") if family == "IPv4" else bed.address6("server")
    bed.set_link("worker-1", Link(up_bits_per_s=3e8, up_loss=0.01))
    sent = send(bed, "worker-1", address)
    dropped = bed.dropped("worker-1")
    assert dropped == pytest.approx((MEGABYTES << 20) / 1448 * 0.01, rel=0.4)
    assert sent.retransmits - sent.needless == pytest.approx(dropped, rel=0.02, abs=2)
    assert bed.snmp("worker-1").retransmitted_segments == sent.retransmits
    assert sent.congestion == "cubic"


def test_what_a_host_sends_is_held_or_arrives_twice(bed: Bed, receiver: None) -> None:
    address = bed.address("server")
    relay = Relay(bed, "worker-1", held_s=0.2)
    assert send(bed, "worker-1", address, megabytes=1).duration_s >= 0.2
    relay.close()
    # the sender does not always hear of copies: a receiver may take both at once
    assert any(_needless_where_all_arrives_twice(bed, address) for _ in range(6))
    assert send(bed, "worker-1", address, megabytes=1).needless == 0


def _needless_where_all_arrives_twice(bed: Bed, address: str) -> int:
    relay = Relay(bed, "worker-1", held_s=0.0)
    needless = send(bed, "worker-1", address, megabytes=1).needless
    relay.close()
    return needless


def test_links_are_changed_in_use(bed: Bed, receiver: None) -> None:
    bed.set_link("worker-0", Link(down_loss=1.0))
    blocked = bed.popen("worker-0", [sys.executable, "-c", SENDER, bed.address("server"), "1"], stdout=subprocess.PIPE)
    wait_for(lambda: bed.dropped("worker-0") >= 2, "packets that are lost")
    assert blocked.poll() is None
    bed.set_link("worker-0", Link(up_bits_per_s=3e8))
    blocked.communicate(timeout=LIMIT_S)
    assert blocked.returncode == 0
    before = bed.dropped("worker-0")
    sent = send(bed, "worker-0", bed.address("server"))
    assert bed.dropped("worker-0") == before
    assert sent.retransmits <= 20 + bed.overruns()


@pytest.mark.parametrize("side", ["up_bits_per_s", "down_bits_per_s"])
def test_rate_is_an_upper_bound(bed: Bed, receiver: None, side: str) -> None:
    host = "worker-0" if side == "up_bits_per_s" else "server"
    bed.set_link(host, dataclasses.replace(bed.link(host), **{side: 5e7, "queue_s": 0.2}))
    assert send(bed, "worker-0", bed.address("server"), megabytes=5).duration_s > (5 << 20) * 8 / 5e7 * 0.9


def test_unplugged_host_comes_back(bed: Bed, receiver: None) -> None:
    bed.unplug("worker-0")
    sender = bed.popen("worker-0", [sys.executable, "-c", SENDER, bed.address6("server"), "1"], stdout=subprocess.PIPE)
    bed.plug("worker-0")
    sender.communicate(timeout=LIMIT_S)
    assert sender.returncode == 0
    bed.rename_interface("worker-0", "lan0")
    bed.set_link("worker-0", Link(up_bits_per_s=3e8))
    for address in (bed.address("server"), bed.address6("server")):
        assert send(bed, "worker-0", address, megabytes=1).congestion == "cubic"


def test_beds_do_not_meet(bed: Bed, receiver: None) -> None:
    with Bed({"server": Link(), "worker-0": Link()}) as other:
        command = [sys.executable, "-c", SENDER, other.address("server"), "1"]
        refused = other.popen("worker-0", command, stderr=subprocess.PIPE)
        _, said = refused.communicate(timeout=LIMIT_S)
        assert b"ConnectionRefusedError" in said
        send(bed, "worker-0", bed.address("server"), megabytes=1)


OWNER = """
import subprocess, sys
from benchmarks.testbed import Bed, Link
bed = Bed({"a": Link()})
bed.up()
child = bed.popen("a", ["sleep", "1000"], stdout=subprocess.DEVNULL)
print(bed.namespace("a"), child.pid, flush=True)
sys.stdin.read()
"""


def clean() -> str:
    command = [sys.executable, "-m", "benchmarks.testbed.clean"]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True).stdout


def test_bed_of_a_killed_owner_is_removed() -> None:
    if reason := permitted():
        pytest.skip(f"test bed: {reason}")
    command = [sys.executable, "-c", OWNER]
    owner = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        namespace, child = owner.stdout.readline().split()
        said = clean()
        assert os.path.exists(f"/run/netns/{namespace}"), f"the bed of a living owner was removed: {said}"
    finally:
        owner.kill()
        owner.wait()
        clean()
    assert not os.path.exists(f"/run/netns/{namespace}")
    wait_for(lambda: not os.path.exists(f"/proc/{child}"), "the end of what ran in the bed")


def test_bed_that_does_not_come_up_leaves_nothing() -> None:
    if reason := permitted():
        pytest.skip(f"test bed: {reason}")
    bed = Bed({"a": Link(), "b": Link(congestion="no-such-thing")})
    with pytest.raises(Exception, match="no-such-thing"):
        bed.up()
    assert not os.path.exists(f"/run/netns/{bed.namespace('a')}")
