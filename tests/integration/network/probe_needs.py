"""What tests of the network probe need from this machine, and a root user without privileges."""

from __future__ import annotations

import os
import shutil

import pytest

from dynamix_ps.metrics.network.probe.protocol import DEFAULT_SOCKET
from dynamix_ps.metrics.network.sources import check_levels

EBPF = check_levels()[0]
needs_ebpf = pytest.mark.skipif(not EBPF.usable, reason=f"eBPF is not possible here: {EBPF.reason}")
needs_no_host_probe = pytest.mark.skipif(os.path.exists(DEFAULT_SOCKET), reason=f"a probe is at {DEFAULT_SOCKET}")

# root without any capability
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
needs_setpriv = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can give up its rights, with setpriv"
)
