"""Hosts of a bed with a real sshd on each. Needs OpenSSH's server and client.

The servers, keys and the client's configuration are the bed's own; nothing of the machine's is read or changed. All
hosts have the file system of the machine, so paths are the same on all of them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.testbed.bed import Bed, permitted
from benchmarks.testbed.commands import BedError

_SSHD, SSH = Path("/usr/sbin/sshd"), Path("/usr/bin/ssh")
_START_S = 10.0
_SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/host-key
AuthorizedKeysFile {folder}/authorized-{name}
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
"""
_SSH_CONFIG = """\
Host *
  IdentityFile {folder}/user-key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known-hosts
  GlobalKnownHostsFile /dev/null
"""


def unavailable() -> str | None:
    """Why there can be no such hosts; None if there can."""
    missing = [str(path) for path in (_SSHD, SSH) if not path.exists()]
    return f"not installed: {', '.join(missing)}" if missing else permitted()


class SshHosts:
    """Lets a user on any host of a bed reach some of them by ssh. What it starts ends with the bed.

    Args:
        bed: that is up.
        names: hosts that get an sshd.
        folder: for keys, configurations and logs; empty.

    Raises BedError if an sshd does not start.
    """

    def __init__(self, bed: Bed, names: Sequence[str], folder: Path) -> None:
        self._bed, self.folder = bed, folder
        for name in ("host-key", "user-key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        key = (folder / "host-key.pub").read_text().split()[1]
        known = [f"{bed.address(name)} ssh-ed25519 {key}\n" for name in names]
        (folder / "known-hosts").write_text("".join(known))
        self.configure("")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd confines itself; its package makes it at boot
        for name in names:
            self.show_all(name)
            self.start_sshd(name)

    def configure(self, before: str) -> None:
        """Write the client's configuration, with `before` in front of what all hosts have in common."""
        (self.folder / "ssh-config").write_text(before + _SSH_CONFIG.format(folder=self.folder))
        wrapper = self.folder / "bin" / "ssh"  # as OpenSSH looks for ~/.ssh/config wherever $HOME is
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F {self.folder}/ssh-config "$@"\n')
        wrapper.chmod(0o755)

    def show_instead(self, name: str, folder: Path, instead: Path) -> None:
        """Let who logs in on a host from now on find there, at the path `folder`, what is in `instead`."""
        view = self.folder / f"view-{name}"
        mount = 'mount --bind "$0" "$1" && eval "$SSH_ORIGINAL_COMMAND"'
        argv = ("unshare", "--mount", "sh", "-c", mount, str(instead), str(folder))
        view.write_text(f"#!/bin/sh\nexec {shlex.join(argv)}\n")
        view.chmod(0o755)
        self._authorize(name, f'command="{view}" ')

    def show_all(self, name: str) -> None:
        """Let who logs in on a host find the file system of the machine."""
        self._authorize(name, "")

    def _authorize(self, name: str, options: str) -> None:
        (self.folder / f"authorized-{name}").write_text(options + (self.folder / "user-key.pub").read_text())

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """An environment in which `ssh` has this configuration."""
        return {**environ, "PATH": os.pathsep.join((str(self.folder / "bin"), environ.get("PATH", os.defpath)))}

    def start_sshd(self, name: str) -> None:
        """Raises BedError if it does not start."""
        config, said = self.folder / f"sshd-{name}", self.folder / f"sshd-{name}.log"
        config.write_text(_SSHD_CONFIG.format(address=self._bed.address(name), folder=self.folder, name=name))
        with said.open("wb") as log:
            argv = [str(_SSHD), "-D", "-e", "-f", str(config)]
            process = self._bed.popen(name, argv, stdin=subprocess.DEVNULL, stderr=log)
        deadline_s = time.monotonic() + _START_S
        while b"listening" not in said.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise BedError(f"sshd on {name} does not start: {said.read_text().strip()}")
            time.sleep(0.01)
