"""Descriptors in reserve are there when a process has reached its limit on open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dynamix_ps.open_files import SpareFiles


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """This process can open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.dup(0)]
    while taken[-1] < highest:  # no gap is left below it
        taken.append(os.dup(0))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + count, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def test_they_are_held_as_long_as_there_are_others() -> None:
    with room_for(30):
        spare = SpareFiles(10)
        assert not spare.give_up_if_needed()
        spare.close()


def test_they_are_given_up_once_when_no_others_are_left() -> None:
    with room_for(10):
        spare = SpareFiles(10)
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        assert spare.give_up_if_needed()
        for descriptor in [os.dup(0) for _ in range(10)]:
            os.close(descriptor)
        assert not spare.give_up_if_needed()


def test_where_there_is_no_room_for_all_none_is_held() -> None:
    with room_for(5):
        spare = SpareFiles(10)
        for descriptor in [os.dup(0) for _ in range(5)]:
            os.close(descriptor)
        assert not spare.give_up_if_needed()
