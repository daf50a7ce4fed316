"""The probe of a run starts beside its roles. Until it answers, files beside its socket tell them how far it is.

The launcher makes these files: `note_starting`, then `note_answers` or `note_refused`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dynamix_ps.metrics.network.connection import SourceError


class ProbeStarting(SourceError):
    """It does not answer yet; nothing is known of the network until then."""


class ProbeRefused(SourceError):
    """It does not come, and the launcher has told why."""


def note_starting(socket: str) -> None:
    """Call it before a role that asks this probe is started."""
    Path(_starting(socket)).touch()


def note_answers(socket: str) -> None:
    """From now on whoever finds no probe has lost it. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_starting(socket))


def note_refused(socket: str) -> None:
    """It does not come."""
    os.replace(_starting(socket), _refused(socket))


def check_started(socket: str) -> None:
    """Raises ProbeStarting or ProbeRefused; never for a probe that the launcher has not started."""
    if os.path.exists(_starting(socket)):
        raise ProbeStarting(f"network probe {socket}: is starting")
    if os.path.exists(_refused(socket)):
        raise ProbeRefused(f"network probe {socket}: could not be started")


def _starting(socket: str) -> str:
    return f"{socket}.starting"


def _refused(socket: str) -> str:
    return f"{socket}.refused"
