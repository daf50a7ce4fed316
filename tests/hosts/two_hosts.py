"""Two hosts as network namespaces, with a launcher outside of both: it reaches their agents by streams alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.testbed import Bed, Link
from tests.launching import command_line, launch_by

HOSTS = ("a", "b")


class TwoHosts:
    """A job with a worker on each host.

    `extra`: further lines of the cluster file. `addresses`: in it, of hosts for which they are not right. `resume`: a
    checkpoint.
    """

    def __init__(
        self,
        bed: Bed,
        folder: Path,
        script: str,
        comm: str = "gloo",
        mode: str = "'off'",
        extra: str = "",
        addresses: Mapping[str, str] | None = None,
        resume: Path | None = None,
    ) -> None:
        self.folder = folder
        file = folder / "worker.py"
        file.write_text(script)
        known = {name: bed.address(name) for name in HOSTS} | dict(addresses or {})
        hosts = ", ".join(f"{name}: {{address: {address}}}" for name, address in known.items())
        cluster = folder / "cluster.yaml"
        cluster.write_text(
            f"name: t\nrun_dir: {json.dumps(str(folder / 'runs'))}\ncomm: {comm}\nmode: {mode}\n"
            f"cluster: {{hosts: {{{hosts}}}, workers: [{{}}, {{}}]}}\n"
            f"command: [python, {json.dumps(str(file))}]\n{extra}"
        )
        commands = {name: bed.inside(name) for name in HOSTS}
        self.process = launch_by(commands, folder, str(cluster), *([str(resume)] if resume else []))

    @property
    def run_folder(self) -> Path:
        return (self.folder / "runs" / "latest").resolve()

    def summary(self) -> dict[str, object]:
        return json.loads((self.run_folder / "summary.json").read_text())

    def agents(self) -> dict[str, int]:
        """Process of each host's agent."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return dict(zip(HOSTS, [int(pid) for pid in children if "launch.host.agent" in command_line(pid)], strict=True))


@contextmanager
def two_hosts(folder: Path, script: str, **options: Any) -> Iterator[TwoHosts]:
    with Bed({name: Link() for name in HOSTS}) as bed:
        job = TwoHosts(bed, folder, script, **options)
        try:
            yield job
        finally:
            if job.process.poll() is None:
                os.kill(job.process.pid, signal.SIGKILL)
                job.process.communicate()
