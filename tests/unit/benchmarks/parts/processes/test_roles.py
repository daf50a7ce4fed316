"""Roles of a benchmark run, with small programs in place of BytePS."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts.processes.roles import Roles
from benchmarks.testbed.byteps_roles import Place

ENDS = ["-c", "pass"]


def test_rows_come_before_the_worker_ends(tmp_path: Path) -> None:
    worker = ["-c", "print('[1]', flush=True); import sys; sys.stdin.readline(); print('{\"a\": 2}')"]
    with Roles(tmp_path, {}, worker, ENDS) as roles:
        rows = roles.rows()
        assert next(rows) == [1]
        for rank in range(2):
            stdin = roles.processes[f"worker-{rank}"].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
        assert list(rows) == [{"a": 2}]


def test_a_worker_that_fails_is_named_while_worker_0_waits_for_it(tmp_path: Path) -> None:
    worker = ["-c", "import os, sys; os.environ['DMLC_WORKER_ID'] == '0' and sys.stdin.readline(); sys.exit('lost it')"]
    with Roles(tmp_path, {}, worker, ENDS) as roles, pytest.raises(SystemExit, match="worker-1 ended with 1:\nlost it"):
        list(roles.rows())
    assert all(process.poll() is not None for process in roles.processes.values())


def test_places_of_roles(tmp_path: Path) -> None:
    """The words before the command line, and the addresses that roles get to know."""

    def place(role: str) -> Place:
        return Place(("env", f"PLACE={role}"), f"10.0.0.{len(role)}", f"if-{role}")

    names = ("PLACE", "DMLC_NODE_HOST", "GLOO_SOCKET_IFNAME", "DMLC_PS_ROOT_URI", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER")
    worker = ["-c", f"import json, os; print(json.dumps([os.environ[name] for name in {names}]))"]
    with Roles(tmp_path, {}, worker, ENDS, workers=3, servers=4, place=place) as roles:
        assert roles.results()[2] == ["worker-2", "10.0.0.8", "if-worker-2", "10.0.0.9", "4", "3"]
        assert sorted(roles.processes)[1:5] == ["server-0", "server-1", "server-2", "server-3"]
