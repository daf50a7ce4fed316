"""Hypothesis draws the same examples in every run, so that a test result changes only with the code.

`pytest --hypothesis-profile=search` looks for new examples.

Every process of a test computes with one thread: those of several processes would wait for cores by spinning.
"""

from __future__ import annotations

import os

from hypothesis import settings

from dynamix_ps.one_thread import ONE_THREAD

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")

for name, threads in ONE_THREAD.items():
    os.environ.setdefault(name, threads)
