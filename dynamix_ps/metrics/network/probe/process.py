"""The network probe: one privileged process per host that reads the kernel for processes that may not.

`python -m dynamix_ps.metrics.network.probe.process --socket PATH` loads the eBPF programs, prints `ready`, and answers
on a Unix socket, read-only, until SIGTERM. protocol.py has the messages, server.py the permissions.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.probe.listening_socket import ListeningSocket
from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET
from dynamix_ps.metrics.network.probe.server import ConnectionCollector, Probe

_EBPF = "dynamix_ps.metrics.network.ebpf"


def run_probe(path: str, make_collector: Callable[[], ConnectionCollector], private: bool = False) -> int:
    """Serve at `path` until SIGTERM or SIGINT; `private`: only this user and root.

    Raises:
        EnvironmentNotReady: another probe runs, the path cannot be used, or eBPF does not work.
    """
    with ListeningSocket(path, private) as listening:
        try:
            collector = make_collector()
        except SourceError as error:
            raise EnvironmentNotReady("; ".join(filter(None, (str(error), error.fix)))) from error
        probe = Probe(collector, listening)
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, probe.stop)
            print(f"ready {path} (pid {os.getpid()})", flush=True)
            probe.serve()
        finally:
            probe.close()
    return 0


def ebpf_collector() -> ConnectionCollector:
    """Loads the eBPF programs, and with them libbcc, which takes 130 MB.

    Raises:
        SourceError: eBPF does not work here, or its folder has been taken away.
    """
    if importlib.util.find_spec(_EBPF) is None:
        raise SourceError(f"{_EBPF} is not installed", "install the whole package")
    collector: ConnectionCollector = importlib.import_module(f"{_EBPF}.collector").EbpfCollector()
    return collector


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dynamix_ps.metrics.network.probe.process", description=__doc__)
    parser.add_argument("--socket", default=DEFAULT_SOCKET, help="Unix socket to answer on (default: %(default)s)")
    parser.add_argument("--private", action="store_true", help="let no other user connect, except root")
    given = parser.parse_args(arguments)
    return exit_code_of(lambda: run_probe(given.socket, ebpf_collector, given.private))


if __name__ == "__main__":
    sys.exit(main())
