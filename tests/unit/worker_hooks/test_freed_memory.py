"""What an iteration frees is there for the next one, without a page fault."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from worker_hooks.process.freed_memory import keep_freed_memory

ITERATIONS = """
import resource, sys
from worker_hooks.process.freed_memory import keep_freed_memory

assert not sys.argv[1:] or keep_freed_memory()

def iteration():
    activations = [bytearray(10_000_000) for _ in range(12)]

for _ in range(3):
    iteration()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    iteration()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.timeout(60)
def test_an_iteration_uses_the_memory_of_the_one_before() -> None:
    as_usual, kept = (
        int(subprocess.run([sys.executable, "-c", ITERATIONS, *given], capture_output=True, check=True).stdout)
        for given in ((), ("keep",))
    )
    assert kept < as_usual / 20


def test_another_c_library_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory({})


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_set_up_stays(name: str) -> None:
    assert not keep_freed_memory({name: "glibc.malloc.trim_threshold=1"})
