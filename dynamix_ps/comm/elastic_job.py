"""Whether workers and servers of this job come and go: its environment tells."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dynamix_ps.config import variables


def is_elastic(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether workers and servers of this run may be lost while the others go on."""
    return environ.get(variables.ELASTIC) == "1"


def first_workers(slots: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many workers the job begins with; the other slots are empty."""
    return int(environ.get(variables.FIRST_WORKERS) or slots)


def is_late(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this worker is a joiner: it comes to a job that trains already, in an empty slot."""
    return is_elastic(environ) and environ.get(variables.STARTS, "0") != "0"
