"""The files of one run. Roles append to them; the launcher and reports read them."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime, timezone
from pathlib import Path

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady, UsageError


class RunFolder:
    """The paths of a run's files. `create` makes a new folder, `open` checks an existing one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, base: Path, name: str, now: datetime, run_id: str) -> RunFolder:
        """Make `<base>/<name>-<utc>-<run_id>/` with its sub-folders.

        `now` must carry a time zone. Raises EnvironmentNotReady when the folder exists or cannot be made.
        """
        stamp = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        folder = cls(base.absolute() / f"{name}-{stamp}-{run_id}")
        try:
            folder.make()
        except OSError as error:
            raise EnvironmentNotReady(
                f"cannot create the run folder {folder.path}: {error.strerror or error}; "
                "set run_dir in the YAML to a folder you may write to"
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run folder, such as `runs/latest`. Raises UsageError if it is none."""
        resolved = path.resolve()
        folder = cls(resolved)
        if not folder.workers_dir.is_dir():
            raise UsageError(f"{path}: not a run folder (no workers/ in it); give a folder such as runs/latest")
        return folder

    def make(self) -> None:
        """Make the folder, which must be new, for this user alone, with its sub-folders. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True)
        for part in (self.logs_dir, self.plots_dir, self.workers_dir, self.roles_dir):
            part.mkdir()
        for part in (self.arbitrator_dir, self.checkpoints_dir):
            part.mkdir()

    @property
    def config_file(self) -> Path:
        return self.path / "config.resolved.yaml"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def requests_file(self) -> Path:
        """What commands ask of the launcher while the run goes on."""
        return self.path / "requests.jsonl"

    @property
    def windows_csv(self) -> Path:
        return self.path / "windows.csv"

    @property
    def plans_csv(self) -> Path:
        return self.path / "plans.csv"

    @property
    def links_csv(self) -> Path:
        return self.path / "links.csv"

    @property
    def servers_csv(self) -> Path:
        return self.path / "servers.csv"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def summary_md(self) -> Path:
        return self.path / "summary.md"

    @property
    def report_html(self) -> Path:
        """The run on one page."""
        return self.path / "report.html"

    @property
    def plots_dir(self) -> Path:
        return self.path / "plots"

    @property
    def tensorboard_dir(self) -> Path:
        return self.path / "tensorboard"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    @property
    def workers_dir(self) -> Path:
        return self.path / "workers"

    @property
    def roles_dir(self) -> Path:
        return self.path / "roles"

    @property
    def arbitrator_dir(self) -> Path:
        return self.path / "arbitrator"

    @property
    def journal_file(self) -> Path:
        return self.arbitrator_dir / "journal.jsonl"

    @property
    def membership_file(self) -> Path:
        """What the coordinator of an elastic job has decided."""
        return self.arbitrator_dir / "membership.jsonl"

    def newest_checkpoint(self) -> Path | None:
        """The newest one of the first training of its processes, from which `--resume` goes on; none: there is none."""
        found = (file for file in self.checkpoints_dir.glob("last.*") if file.suffix in (".pt", ".npz"))
        return max(found, key=lambda file: file.stat().st_mtime, default=None)

    def remove_partial_checkpoints(self) -> None:
        """What processes were writing that have ended. Never raises."""
        for file in self.checkpoints_dir.glob(".*"):
            with contextlib.suppress(OSError):
                file.unlink()

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    def log_file(self, role: str) -> Path:
        """Output of one role, for example `worker-0`."""
        return self.logs_dir / f"{role}.log"

    def worker_file(self, rank: int) -> Path:
        """JSON lines that one worker's hook appends."""
        return self.workers_dir / f"worker-{rank}.jsonl"

    def iteration_file(self, rank: int) -> Path:
        """The iteration in which one worker is, as iteration_mark.py writes it."""
        return self.workers_dir / f"worker-{rank}.iteration"

    @property
    def end_mark(self) -> Path:
        """Is there as soon as the launcher ends an elastic job: SIGTERM then is no notice to leave it."""
        return self.workers_dir / "job-ends"

    def role_file(self, name: str) -> Path:
        """JSON lines with the reports of one role, for example `server-0`, on its connections and its machine."""
        return self.roles_dir / f"{name}.jsonl"

    def write_config(self, config: Config) -> None:
        """Write the cluster file with every default. Raises OSError."""
        from dynamix_ps.config.load import dump_config  # only the launcher writes it

        write_private_if_secret(self.config_file, dump_config(config), config)

    def link_latest(self) -> Path:
        """Point `<base>/latest` to this folder, atomically. Raises EnvironmentNotReady if it cannot."""
        link = self.path.parent / "latest"
        fresh = self.path.parent / f".latest-{self.path.name}"
        try:
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(self.path.name, target_is_directory=True)
            os.replace(fresh, link)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise EnvironmentNotReady(
                f"cannot point {link} to {self.path.name}: {error.strerror or error}; "
                f"move {link} away if it is not a symbolic link"
            ) from error
        return link


def write_private_if_secret(file: Path, text: str, config: Config) -> None:
    """Write a new file. It is for this user alone if the cluster file has `env:`, which may hold passwords.

    Raises OSError.
    """
    mode = 0o600 if config.env else 0o666  # less what the umask takes away
    with open(file, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, mode)) as opened:
        opened.write(text)
