"""Hypothesis draws the same examples in every run, so that a test that passed goes on passing until the code changes.

`pytest --hypothesis-profile=search` looks for new ones.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")
