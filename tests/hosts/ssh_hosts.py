"""Hosts as network namespaces, each with a real sshd, and `dynamix launch` on one of them.

The sshd, keys and client configuration are the tests' own; nothing of the machine's is read or changed. All hosts have
the file system of the machine, so paths are the same on all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.testbed import Bed, Link, permitted
from tests.launching import command_line, environment, wait_for

SSHD, SSH = Path("/usr/sbin/sshd"), Path("/usr/bin/ssh")
ADDRESSES = {"node-1": "10.77.0.1", "node-2": "10.77.0.2", "node-3": "10.77.0.3"}  # as in configs/three-hosts.yaml
HOSTS = tuple(ADDRESSES)
LOGIN = "login"  # a host without sshd and without roles

SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/host-key
AuthorizedKeysFile {folder}/user-key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
"""
SSH_CONFIG = """\
Host *
  IdentityFile {folder}/user-key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known-hosts
  GlobalKnownHostsFile /dev/null
"""


def unavailable() -> str | None:
    """Why these hosts cannot be; None if they can."""
    missing = [str(path) for path in (SSHD, SSH) if not path.exists()]
    return f"not installed: {', '.join(missing)}" if missing else permitted()


class SshHosts:
    """Hosts of which every one runs an sshd, but for LOGIN."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        for name in ("host-key", "user-key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        _, key, *_ = (folder / "host-key.pub").read_text().split()
        known = [f"{address} ssh-ed25519 {key}\n" for address in ADDRESSES.values()]
        (folder / "known-hosts").write_text("".join(known))
        self.configure("")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd keeps itself; the package makes it at boot
        for host in HOSTS:
            self._start_sshd(host)

    def configure(self, before: str) -> None:
        """Write the client's configuration, with `before` before what all hosts have in common."""
        (self.folder / "ssh-config").write_text(before + SSH_CONFIG.format(folder=self.folder))
        wrapper = self.folder / "bin" / "ssh"  # as OpenSSH looks for ~/.ssh/config wherever $HOME is
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F {self.folder}/ssh-config "$@"\n')
        wrapper.chmod(0o755)

    def _start_sshd(self, host: str) -> None:
        config = self.folder / f"sshd-{host}"
        config.write_text(SSHD_CONFIG.format(address=ADDRESSES[host], folder=self.folder))
        with open(self.folder / f"sshd-{host}.log", "wb") as log:
            argv = [str(SSHD), "-D", "-e", "-f", str(config)]
            self.bed.popen(host, argv, stdin=subprocess.DEVNULL, stderr=log)
        wait_for(lambda: b"listening" in (self.folder / f"sshd-{host}.log").read_bytes(), f"sshd on {host}")

    def environment(self) -> dict[str, str]:
        return environment(PATH=f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def launch(self, cwd: Path, *arguments: str, on: str = HOSTS[0]) -> subprocess.Popen[str]:
        """`dynamix launch ...` on a host; its standard error and output come in one stream."""
        return subprocess.Popen(
            [*self.bed.inside(on), sys.executable, "-m", "dynamix_ps.cli.main", "launch", *arguments],
            cwd=cwd,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def ssh(self, *arguments: str, on: str) -> subprocess.Popen[bytes]:
        """The user's own ssh on a host."""
        return self.bed.popen(on, [str(self.folder / "bin" / "ssh"), *arguments], stdin=subprocess.DEVNULL)


@contextmanager
def ssh_hosts(folder: Path) -> Iterator[SshHosts]:
    with Bed({host: Link() for host in (*HOSTS, LOGIN)}) as bed:
        yield SshHosts(bed, folder)


def cluster_file(
    folder: Path,
    script: str,
    hosts: Mapping[str, str | None] = ADDRESSES,
    sizes: Sequence[int] = (),
    comm: str = "gloo",
) -> Path:
    """A cluster file whose workers, one per host, run a script with fixed sizes; its run folders lie beside it.

    `hosts`: addresses by name. None of them: this machine alone.
    """
    (folder / "worker.py").write_text(script)
    file = folder / "cluster.yaml"
    workers = [{"batch": size} for size in sizes] or [{}] * len(hosts)
    named = {"hosts": {name: {"address": address} for name, address in hosts.items()}} if hosts else {}
    keys = {"run_dir": str(folder / "runs"), "comm": comm, "mode": "off", "cluster": {**named, "workers": workers}}
    file.write_text(json.dumps({"name": "t", **keys, "command": ["python", "worker.py"]}))  # JSON is YAML too
    return file


def ssh_clients(launcher: subprocess.Popen[str]) -> dict[str, int]:
    """The ssh of each host that a launcher has started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    words = {pid: command_line(pid).split("\0") for pid in children}
    return {word: int(pid) for pid, line in words.items() if line[0] == str(SSH) for word in line if word in HOSTS}
