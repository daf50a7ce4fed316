"""Secrets of jobs, for tests of agents that listen."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from dynamix_ps.launch.roles.authority import Authority
from dynamix_ps.launch.targets.kubernetes.job_secret import NAME, TOKEN, JobSecret


def job_secret(folder: Path, authority: Authority | None = None, token: str | None = None) -> JobSecret:
    """The secret of a new job, or with what another one has too, in the files of a new folder."""
    issued = (authority or Authority(time.time())).issue(NAME)
    made = JobSecret(token or secrets.token_hex(32), issued)
    made.certificates.save(folder)
    (folder / TOKEN).write_text(made.token)
    return made
