"""A job with the rights of a pod of Pod Security `restricted`, and the probe with the capabilities of its manifest."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dynamix_ps.launch.targets.kubernetes.probe_pods import CAPABILITIES
from dynamix_ps.metrics.network.probe.client import ProbeSource
from tests.integration.network.probe_needs import needs_ebpf, needs_setpriv
from tests.launching import (
    ROOT,
    assert_nothing_left,
    begun,
    cluster_file,
    environment,
    read_until,
    run_id_in,
    run_to_end,
    script,
)
from tests.other_user import as_another_user

pytestmark = pytest.mark.timeout(120)

USER = "12345"  # without an entry in /etc/passwd
AS_USER = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}"]
SUMS = """
import torch
import byteps.torch as bps
bps.init()
for _ in range(5):
    assert float(bps.push_pull(torch.ones(1_000_000), name="x", average=False).sum()) == 2_000_000
bps.shutdown()
print("user", os.getuid(), flush=True)
started()
finished()
"""


def _users_can_be_mapped() -> bool:
    command = [*AS_USER, "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


@pytest.mark.skipif(not _users_can_be_mapped(), reason="no user namespace can be made here")
@pytest.mark.parametrize("home", [None, "/nonexistent"])
def test_a_job_on_byteps_runs_as_a_user_without_name_home_and_capabilities(tmp_path: Path, home: str | None) -> None:
    file = cluster_file(tmp_path, workers="[{}, {}]", comm="byteps")
    environ = environment()
    environ.pop("HOME", None)
    if home is not None:
        environ["HOME"] = home
    filtered = [*AS_USER, sys.executable, "-m", "tests.system_call_filter", sys.executable, "-m", "dynamix_ps.cli.main"]
    argv = [*filtered, "launch", "-c", str(file), "--", "python", str(script(tmp_path, SUMS))]
    done = run_to_end(argv, tmp_path, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"user {USER}") == 2
    assert not (tmp_path / "~").exists()
    assert_nothing_left(run_id_in(done.stdout))


@needs_ebpf
@needs_setpriv
def test_the_probe_needs_no_more_than_the_capabilities_of_its_manifest() -> None:
    """It sees connections that a process of another user has opened before."""
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in CAPABILITIES)])
    place = tempfile.TemporaryDirectory()
    path = Path(place.name, "probe.sock")
    path.parent.chmod(0o755)
    argv = ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs", "--"]
    argv += [sys.executable, "-m", "dynamix_ps.metrics.network.probe.process", "--socket", str(path)]
    probe = begun(argv, ROOT, environment(DYNAMIX_CACHE=str(path.parent / "cache")))
    try:
        read_until(probe, "ready")

        def ask() -> None:
            server, client = socket.create_server(("127.0.0.1", 0)), socket.socket()
            client.connect(server.getsockname())
            with server, client, server.accept()[0]:
                snapshot = ProbeSource(str(path)).ask("mine")
            assert [process.pid for process in snapshot.processes] == [os.getpid()]
            assert len(snapshot.connections) == 2, snapshot

        as_another_user(ask)
    finally:
        probe.terminate()
        probe.communicate()
        place.cleanup()
