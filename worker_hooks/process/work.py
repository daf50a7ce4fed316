"""What a worker computes, and on what, as a digest: the next run of the same job has the same one.

The arbitrator adds hosts and data plane (dynamix_ps/arbitrator/profile_file.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping

from dynamix_ps.config import variables


def work_digest(described: Mapping[str, str]) -> str:
    """Of the script, the trained parameters and the devices; empty where the script is no file that can be read.

    `described`: shape, type and device of every parameter.
    """
    try:
        with open(str(getattr(sys.modules["__main__"], "__file__", "")), "rb") as script:
            code = hashlib.sha256(script.read()).hexdigest()
    except OSError:
        return ""
    devices = [len(os.sched_getaffinity(0)), variables.get("CUDA_VISIBLE_DEVICES")]
    return hashlib.sha256(json.dumps([code, devices, dict(described)]).encode()).hexdigest()
