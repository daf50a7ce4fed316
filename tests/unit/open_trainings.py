"""What trainings in this process leave to each other ends with the test that opened them."""

from __future__ import annotations

import sys

import worker_hooks.session


def end_trainings() -> None:
    """Close what is open, which else watches whatever steps and loads here, and forget its batch sizes."""
    for framework in ("torch", "mxnet"):
        for adapter in list(getattr(sys.modules.get(f"worker_hooks.{framework}.adapter"), "open_adapters", ())):
            adapter.training.close()
    worker_hooks.session._accounts.clear()
