"""The counters of this process's whole network namespace, from /proc/net: the last resort, available everywhere.

They count packets with headers, of all processes and protocols in the namespace, and contain no round trip times and
no queues. For a process alone in its namespace (a container) they are close to what it sends.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dynamix_ps.metrics.network.connection import Connection, Reading, SourceError, SourceName
from dynamix_ps.metrics.network.meter import NAMESPACE

_ROLE = b"DMLC_ROLE="  # in the environment of every role of BytePS


class ProcfsSource:
    """See NetworkSource. Returns one pseudo connection whose ends are `NAMESPACE`."""

    name: SourceName = "procfs"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Raises SourceError if the counters cannot be read."""
        self._proc = proc
        self.read()

    def read(self) -> Reading:
        """Raises SourceError."""
        taken_s = time.time()
        try:
            ip = self._counters("netstat", "IpExt")
            tcp = self._counters("snmp", "Tcp")
            netns = os.stat(self._proc / "self/ns/net").st_ino
            total = Connection(
                id=f"netns-{netns}",
                pid=0,
                netns=netns,
                local=NAMESPACE,
                remote=NAMESPACE,
                bytes_out=ip["OutOctets"] + self._ipv6("Ip6OutOctets"),
                bytes_in=ip["InOctets"] + self._ipv6("Ip6InOctets"),
                retransmits=tcp["RetransSegs"],
            )
        except (OSError, KeyError, ValueError) as error:
            raise SourceError(f"{self._proc}/self/net is not as expected: {error}") from None
        return Reading(source=self.name, taken_s=taken_s, connections=(total,), shared=self._is_shared(netns))

    def close(self) -> None:
        """Nothing stays open between readings."""

    def _counters(self, file: str, group: str) -> dict[str, int]:
        """The counters of a group; `/proc/net` has two lines per group: names and values."""
        lines = [line.split() for line in self._text(file).splitlines()]
        rows = [line[1:] for line in lines if line and line[0] == f"{group}:"]
        if len(rows) != 2:
            raise SourceError(f"{self._proc}/self/net/{file} has no counters of {group}")
        return dict(zip(rows[0], map(int, rows[1]), strict=True))

    def _ipv6(self, name: str) -> int:
        """0 if the kernel has no IPv6."""
        if not (self._proc / "self/net/snmp6").exists():
            return 0
        words = self._text("snmp6").split()
        return int(dict(zip(words[::2], words[1::2], strict=True))[name])

    def _text(self, file: str) -> str:
        try:
            return (self._proc / "self/net" / file).read_text()
        except OSError as error:
            raise SourceError(f"{self._proc}/self/net/{file}: {error.strerror}") from None

    def _is_shared(self, netns: int) -> bool:
        """Whether another role of BytePS runs in this namespace. Unreadable processes do not count."""
        for process in self._proc.iterdir():
            if not process.name.isdigit() or process.name == str(os.getpid()):
                continue
            try:
                if os.stat(process / "ns/net").st_ino != netns:
                    continue
                if any(entry.startswith(_ROLE) for entry in (process / "environ").read_bytes().split(b"\0")):
                    return True
            except OSError:
                continue
        return False
