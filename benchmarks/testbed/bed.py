"""Hosts as network namespaces, joined by a switch: a bridge in a separate namespace.

The network of the machine itself stays as it is: each host has a pair of interfaces, `eth0` on its side and a port on
the switch. Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN), `ip`, `tc`, `nsenter` and the kernel modules tbf, bridge and
veth.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.testbed import names, removal
from benchmarks.testbed.commands import BedError, run, run_json
from benchmarks.testbed.link import Link, random_loss, token_bucket

_NETWORK, _PREFIX = "10.77.0.", 24
_NETWORK6, _PREFIX6 = "fd77::", 64
_MOST_HOSTS = 250


@dataclass(frozen=True, slots=True)
class Counters:
    """TCP counters of a whole network namespace (/proc/net/snmp)."""

    sent_segments: int  # OutSegs: without retransmissions
    retransmitted_segments: int  # RetransSegs


class Bed:
    """Hosts and their links, as a context manager. Beds of several processes are independent.

    Raises BedError if a command fails. A bed that does not come up is removed completely.
    """

    def __init__(self, hosts: Mapping[str, Link]) -> None:
        """Raises ValueError for an invalid name of a host, and for no or more than 250 hosts."""
        for name in hosts:
            names.check_host(name)
        if not 0 < len(hosts) <= _MOST_HOSTS:
            raise ValueError(f"hosts: got {len(hosts)}, expected 1 to {_MOST_HOSTS}")
        self._bed = names.new_bed()
        self._switch = names.namespace(self._bed, names.SWITCH)
        self._links = dict(hosts)
        self._number = {host: place for place, host in enumerate(hosts, 1)}
        self._device = dict.fromkeys(hosts, "eth0")
        self._overruns_before = 0
        self._inodes: list[int] = []
        self._processes: list[subprocess.Popen[Any]] = []

    def up(self) -> None:
        """Build the bed. First removes beds on this machine whose owner is dead."""
        removal.remove_left_over()
        self._overruns_before = _overruns()
        try:
            self._build()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End all processes in the bed and remove it. May be called twice."""
        removal.remove(self._bed, self._inodes)
        for process in self._processes:
            process.wait()
        self._inodes.clear()
        self._processes.clear()

    def __enter__(self) -> Bed:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def address(self, host: str) -> str:
        """The host's IPv4 address."""
        return f"{_NETWORK}{self._number[host]}"

    def address6(self, host: str) -> str:
        """The host's IPv6 address."""
        return f"{_NETWORK6}{self._number[host]:x}"

    def namespace(self, host: str) -> str:
        """Name of the host's network namespace."""
        return names.namespace(self._bed, host)

    def loss_command(self, host: str, side: str, probability: float) -> tuple[str, ...]:
        """What sets the loss of a host's link, run in the network of the switch; `side`: ingress or egress."""
        place = ("dev", self.port(host), side, "pref", "1", "handle", "1", "protocol", "all")
        return ("tc", "filter", "replace", *place, *random_loss(probability))

    def port(self, host: str) -> str:
        """Name of the host's interface on the switch."""
        return f"port{self._number[host]}"

    def inode(self, host: str) -> int:
        """The kernel's identifier of the host's network namespace; survives the removal of its name."""
        return self._inodes[self._number[host]]

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen inside the host's network. The file systems, also /sys, are those of the machine."""
        process: subprocess.Popen[Any] = subprocess.Popen((*self.inside(host), *argv), **options)
        self._processes.append(process)
        return process

    def link(self, host: str) -> Link:
        return self._links[host]

    def set_link(self, host: str, link: Link) -> None:
        """Change a host's link while it is in use. Removing a rate loses the packets in its queue."""
        self._set_rate(self.namespace(host), self._device[host], link.up_bits_per_s, link.queue_s)
        self._set_rate(self._switch, self.port(host), link.down_bits_per_s, link.queue_s)
        self._set_loss(host, "ingress", link.up_loss)
        self._set_loss(host, "egress", link.down_loss)
        if link.congestion != self._links[host].congestion:
            self._set_routes(host, link.congestion)
        self._links[host] = link

    def unplug(self, host: str) -> None:
        """Pull the host's cable. Addresses and connections stay."""
        run("ip", "-n", self._switch, "link", "set", self.port(host), "down")

    def plug(self, host: str) -> None:
        """Put the host's cable back."""
        run("ip", "-n", self._switch, "link", "set", self.port(host), "up")

    def crash(self, host: str) -> None:
        """The host goes down: its cable is pulled, and all its processes are killed at once. `plug` brings it back."""
        self.unplug(host)
        removal.end_processes({self.inode(host)})

    def rename_interface(self, host: str, device: str) -> None:
        """Take the host's interface down, rename it, and bring it up again with the same addresses."""
        inside = ("ip", "-n", self.namespace(host), "link", "set")
        run(*inside, self._device[host], "down")
        run(*inside, self._device[host], "name", device)
        self._device[host] = device
        run(*inside, device, "up")
        self._set_addresses(host)
        self._set_routes(host, self._links[host].congestion)

    def remove_name(self, host: str) -> None:
        """Delete the host's namespace. The kernel keeps it while a process runs in it."""
        run("ip", "netns", "delete", self.namespace(host))

    def dropped(self, host: str) -> int:
        """Packets lost at random on the host's link so far, both ways: the losses really injected."""
        qdiscs = run_json("tc", "-s", "-j", "-n", self._switch, "qdisc", "show", "dev", self.port(host))
        return int(next(qdisc["drops"] for qdisc in qdiscs if qdisc["kind"] == "clsact"))

    def overruns(self) -> int:
        """Packets that the whole machine has lost since the bed came up because its CPUs were too slow.

        If it is not 0, the machine is too slow for the rates of the links and loses more than the configured losses.
        """
        return _overruns() - self._overruns_before

    def snmp(self, host: str) -> Counters:
        """The kernel's own counters of the host's namespace."""
        lines = run(*self.inside(host), "cat", "/proc/net/snmp").splitlines()
        titles, values = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
        tcp = dict(zip(titles, map(int, values), strict=True))
        return Counters(tcp["OutSegs"], tcp["RetransSegs"])

    def _build(self) -> None:
        self._add_namespace(self._switch)
        run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        with suppress(BedError):  # exists only with the kernel's bridge filter
            run(*self.inside(names.SWITCH), "sysctl", "-qw", *(f"net.bridge.{name}=0" for name in _BRIDGE_FILTERS))
        for host, link in self._links.items():
            self._add_host(host, link)

    def _add_host(self, host: str, link: Link) -> None:
        inside, device, port = self.namespace(host), self._device[host], self.port(host)
        self._add_namespace(inside)
        run("ip", "-n", inside, "link", "set", "lo", "up")
        pair = (device, "netns", inside, "type", "veth", "peer", "name", port, "netns", self._switch)
        run("ip", "link", "add", *pair)
        run("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
        # otherwise the kernel passes up to 64 KB at once, and one lost packet is 45 lost segments
        run("ip", "-n", inside, "link", "set", device, "gso_max_segs", "1", "up")
        run("tc", "-n", self._switch, "qdisc", "add", "dev", port, "clsact")
        self._set_cpu(inside, device, self._number[host])
        self._set_cpu(self._switch, port, self._number[host])
        self._set_addresses(host)
        self._set_routes(host, link.congestion)
        self.set_link(host, link)

    def _add_namespace(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._inodes.append(removal.inode_of(name))

    def _set_cpu(self, namespace: str, device: str, number: int) -> None:
        """Let one CPU handle all packets that arrive at an interface.

        By default it is the CPU on which the sender runs. If the sender moves to another CPU, packets arrive out of
        order, and TCP mistakes this for losses.
        """
        cpus = sorted(os.sched_getaffinity(0))
        cpu = cpus[number % len(cpus)]
        mask = f"{1 << cpu % 32:x}" + ",00000000" * (cpu // 32)
        file = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"  # in the namespace: `ip netns exec` mounts its /sys
        run("ip", "netns", "exec", namespace, "sh", "-c", f"echo {mask} > {file}")

    def _set_addresses(self, host: str) -> None:
        inside, device = self.namespace(host), self._device[host]
        for address in (f"{self.address(host)}/{_PREFIX}", f"{self.address6(host)}/{_PREFIX6}"):
            options = ("noprefixroute", "nodad") if ":" in address else ("noprefixroute",)
            run("ip", "-n", inside, "address", "replace", address, "dev", device, *options)

    def _set_routes(self, host: str, congestion: str) -> None:
        """Set routes with their congestion control: only root of the machine itself can change the default."""
        inside, device = self.namespace(host), self._device[host]
        for source, network in (
            (self.address(host), f"{_NETWORK}0/{_PREFIX}"),
            (self.address6(host), f"{_NETWORK6}/{_PREFIX6}"),
        ):
            route = (network, "dev", device, "src", source, "congctl", congestion)
            run("ip", "-n", inside, "route", "replace", *route)

    def _set_rate(self, namespace: str, device: str, bits_per_s: float, queue_s: float) -> None:
        limited = any(q["kind"] == "tbf" for q in run_json("tc", "-j", "-n", namespace, "qdisc", "show", "dev", device))
        if bits_per_s < float("inf"):
            words = token_bucket(bits_per_s, queue_s)
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *words)
        elif limited:
            run("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root")

    def _set_loss(self, host: str, side: str, probability: float) -> None:
        """Set the loss. The filter exists even for a loss of 0, so that its counter survives changes."""
        run(*self.inside(names.SWITCH), *self.loss_command(host, side, probability))

    def inside(self, host: str) -> tuple[str, ...]:
        """The words before a command line that make it run in the host's network."""
        return ("nsenter", f"--net={names.NAMESPACES / self.namespace(host)}", "--")


def _overruns() -> int:
    """Sum over the CPUs of the second column: packets dropped because the backlog was full."""
    return sum(int(line.split()[1], 16) for line in Path("/proc/net/softnet_stat").read_text().splitlines())


_BRIDGE_FILTERS = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables")


@functools.cache
def permitted() -> str | None:
    """None if a bed can be built, else the exact reason. Builds one to find out."""
    if os.geteuid() != 0:
        return f"network namespaces need root, this is user {os.geteuid()}"
    try:
        with Bed({"a": Link(up_bits_per_s=1e8, down_bits_per_s=1e8, up_loss=0.5)}) as bed:
            bed.snmp("a")
    except BedError as error:
        return str(error)
    return None
