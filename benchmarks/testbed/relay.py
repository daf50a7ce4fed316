"""Holds what a host of a bed sends for a while, or sends it twice, where the kernel has no queue that can (netem).

    python -m benchmarks.testbed.relay PORT HELD_S      # in the network of the switch

A program on the switch reads every packet that comes in at the host's port, and sends it to the others from the
bridge, later. A filter of the port drops the packet itself meanwhile (link.py), or lets it pass: then it arrives twice.
The packets keep their order. ARP goes its own way. Their checksums and sizes travel with them (PACKET_VNET_HDR): those
of a veth are not filled in.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections import deque

from benchmarks.testbed.bed import Bed
from benchmarks.testbed.commands import BedError
from benchmarks.testbed.link import Link
from benchmarks.testbed.names import SWITCH

_BRIDGE = "bridge"
_ALL, _SOL_PACKET, _VNET_HDR, _IGNORE_OUTGOING = 3, 263, 15, 23  # linux/if_ether.h, linux/if_packet.h
_TYPE = slice(22, 24)  # of the packet, behind the ten bytes of PACKET_VNET_HDR and two addresses
_ARP = b"\x08\x06"
_LONGEST_BYTES = 1 << 17
_BUFFER_BYTES = 16 << 20


class Relay:
    """Begins at once, and changes the link of the host. Raises BedError.

    Args:
        held_s: how long packets are held; 0: they arrive twice.
    """

    def __init__(self, bed: Bed, host: str, held_s: float) -> None:
        self._bed, self._host = bed, host
        argv = [sys.executable, "-m", "benchmarks.testbed.relay", bed.port(host), str(held_s)]
        self._process = bed.popen(SWITCH, argv, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise BedError(f"the relay of {host} ended with {self._process.wait()}")
        if held_s:
            bed.set_link(host, Link(up_loss=1.0))

    def close(self) -> None:
        """The link is as it was at first. What is still held is lost."""
        self._bed.set_link(self._host, Link())
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Until it is killed."""
    port, held_s = sys.argv[1], float(sys.argv[2])
    coming, going = _opened(port, _ALL), _opened(_BRIDGE, 0)
    coming.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    print("ready", flush=True)
    held = deque[tuple[float, bytes]]()
    while True:
        select.select([coming], [], [], max(0.0, held[0][0] - time.monotonic()) if held else None)
        try:
            while True:
                packet = coming.recv(_LONGEST_BYTES)
                if packet[_TYPE] != _ARP:
                    held.append((time.monotonic() + held_s, packet))
        except BlockingIOError:
            pass
        while held and held[0][0] <= time.monotonic():
            going.send(held.popleft()[1])


def _opened(device: str, protocol: int) -> socket.socket:
    """A socket for packets of a device; protocol 0: only to send."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    opened.bind((device, protocol))
    opened.setblocking(False)
    return opened


if __name__ == "__main__":
    main()
