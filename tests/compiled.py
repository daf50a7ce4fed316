"""Programs in C++ for tests, compiled once: kept outside of the checkout under the hash of all that goes into them."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dynamix_ps.config.variables import cache_dir

_KEPT_S = 30 * 24 * 3600.0  # after the last use


def compiled(source: Path, flags: Sequence[str]) -> Path:
    """The program of a file. Raises CalledProcessError if it has no right text."""
    folders = [flag.removeprefix("-I") for flag in flags if flag.startswith("-I")]
    named_alike = [f"-ffile-prefix-map={folder}=." for folder in folders]  # whatever the folder of this test is
    command = ["g++", *flags, *named_alike, str(source)]
    text = subprocess.run([*command, "-E", "-P"], check=True, capture_output=True).stdout
    version = subprocess.run(["g++", "-v"], check=True, capture_output=True).stderr
    options = "\0".join(flag for flag in flags if not flag.startswith("-I")).encode()
    kept = Path(cache_dir()) / "tests"
    program = kept / hashlib.sha256(b"\0".join((version, options, text))).hexdigest()
    if program.exists():
        program.touch()
        return program
    kept.mkdir(parents=True, exist_ok=True)
    for other in kept.iterdir():
        if other.is_file() and time.time() - other.stat().st_mtime > _KEPT_S:
            other.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as folder:
        made = Path(folder) / "program"
        subprocess.run([*command, "-o", str(made)], check=True)
        made.rename(program)  # at once: another test may have compiled it too
    return program
