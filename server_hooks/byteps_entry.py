"""Turns this process into a BytePS server or scheduler."""

from __future__ import annotations

import importlib

from dynamix_ps.errors import EnvironmentNotReady
from server_hooks.peer_watch import end_when_alone


def serve() -> None:
    """Run the role that DMLC_ROLE names until all workers have left, or until they are gone.

    Importing `byteps.server` runs its main loop: a blocking call into C++ without the GIL. Threads that were started
    before go on.

    Raises:
        EnvironmentNotReady: BytePS is not installed or cannot be loaded.
    """
    end_when_alone()
    try:
        importlib.import_module("byteps.server")
    except (ImportError, OSError) as error:
        raise EnvironmentNotReady(f"BytePS cannot be loaded ({error}); run: dynamix build-byteps") from error
