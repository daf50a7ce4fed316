"""Hypothesis draws the same examples in every run, so that a test result changes only with the code.

`pytest --hypothesis-profile=search` looks for new examples.

A shell lets jobs in the background ignore SIGINT and SIGQUIT; the tests, and what they start, do not.

Tests that run in a Slurm job or a Ray cluster know nothing of it.

Every process of a test computes with one thread: those of several processes would wait for cores by spinning.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

from dynamix_ps.one_thread import ONE_THREAD

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

for name in [name for name in os.environ if name.startswith("SLURM_") or name == "RAY_ADDRESS"]:
    del os.environ[name]

for name, threads in ONE_THREAD.items():
    os.environ.setdefault(name, threads)
