"""Small trainings in MXNet in this process (comm: local), for the tests of this folder."""

from __future__ import annotations

from typing import Any

from worker_hooks.joining import join
from worker_hooks.mxnet.adapter import MXNetAdapter
from worker_hooks.run import Run
from worker_hooks.session import Session


def open_run(net: Any, trainer: Any, data: Any, session: Session) -> Run:
    """A training of these."""
    return join(MXNetAdapter(net, trainer), data, session)
