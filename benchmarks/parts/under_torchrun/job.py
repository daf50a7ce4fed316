"""A job of two workers that torchrun starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_two(
    torchrun: Sequence[str | Path], script: Sequence[str | Path], folder: Path, env: Mapping[str, str], limit_s: float
) -> None:
    """Run it in `folder` until nobody writes to its output: summary and tables come after torchrun's end.

    Ends this program if the job fails. Raises TimeoutExpired after `limit_s`.
    """
    done = subprocess.run(
        [*torchrun, "--standalone", "--nproc-per-node", "2", *script],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, script))} failed:\n{done.stdout[-3000:]}")
