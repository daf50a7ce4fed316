"""Profiles of jobs in the user's cache folder, one file each.

A file is named by a digest of what its speeds are of: script, hosts, devices, model and data plane. It holds numbers
alone. Two jobs may write the same one at a time: the last one counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from dynamix_ps.bounded_json import value_in
from dynamix_ps.config import variables
from dynamix_ps.config.kept_files import read_kept, write_kept
from dynamix_ps.config.schema import Config
from dynamix_ps.policy.model.profile import Profile

VERSION = 1
LARGEST_BYTES = 1 << 20  # of a file; 1,024 workers take 100 KB
KEPT = 64  # files, those written last
OLDEST_S = 90 * 86_400  # older ones are not used


def profile_file(config: Config, workers: Mapping[int, tuple[str, str]]) -> Path:
    """The file of a job. `workers`: host and work (worker_hooks/process/work.py) of each that begins it, by rank."""
    speeds = [config.cluster.workers[rank].speed for rank in workers]
    job = [config.comm, config.cluster.wire, config.batch.unit, sorted(workers.items()), speeds]
    digest = hashlib.sha256(json.dumps(job).encode()).hexdigest()
    return Path(variables.cache_dir()) / "speeds" / f"{digest}.json"


def read_profile(file: Path, n_workers: int) -> Profile | None:
    """None if there is none, or an old one. Raises OSError or ValueError if it is unusable."""
    try:
        if time.time() - file.lstat().st_mtime > OLDEST_S:
            return None
        raw = read_kept(file, LARGEST_BYTES)
    except FileNotFoundError:
        return None
    try:
        told = value_in(raw)
        if told["version"] != VERSION:
            raise ValueError(f"version: got {told['version']!r:.100}, expected {VERSION}")
        return Profile.of(told, n_workers)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def write_profile(file: Path, profile: Profile) -> None:
    """Raises OSError."""
    told = {"version": VERSION, **dataclasses.asdict(profile)}
    write_kept(file, json.dumps(told, allow_nan=False).encode(), KEPT)
