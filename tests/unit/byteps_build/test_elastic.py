"""Sums when workers and servers are lost: the sources do what the reference in tests/models/membership does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.compiled import compiled
from tests.models.membership.exchange import Exchange
from tests.models.membership.recorded import Recorder
from tests.models.membership.round_table import RoundTable
from tests.unit.byteps_build import fuzz, schedules
from tests.unit.byteps_build.breaks import BREAKS
from tests.unit.byteps_build.sources_tree import STUBS, switched, write_tree

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

FLAGS = ("-std=c++11", "-Wall", "-O1", "-pthread")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")


def build(folder: Path, played: str, replaced: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The program; `replaced`: texts in the sources.

    Broken sources are compiled without sanitizers, which takes a fifth of the time: the program itself finds the fault.
    """
    write_tree(folder, replaced)
    return compiled(STUBS / f"{played}.cc", [*FLAGS, *(() if replaced else SANITIZERS), f"-I{folder}", f"-I{STUBS}"])


def record(file: Path, play: Callable[[int, Recorder], object], jobs: int) -> Path:
    """Schedules of the reference."""
    with file.open("w") as text:
        recorder = Recorder(text)
        for seed in range(jobs):
            play(seed, recorder)
    return file


def replay(program: Path, file: Path, without: int = 0) -> subprocess.CompletedProcess[str]:
    """The same in C++. `without`: number of a rule of `BREAKS`."""
    environ = os.environ | {"BREAK": str(without)}
    return subprocess.run([program, file], capture_output=True, text=True, timeout=500, check=False, env=environ)


@pytest.fixture(scope="module")
def switchable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in which each of `BREAKS` can be switched on."""
    return build(tmp_path_factory.mktemp("sources"), "replay", switched(BREAKS.values()))


@pytest.fixture(scope="module")
def anything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schedules of events in any order."""
    return record(tmp_path_factory.mktemp("recorded") / "anything", fuzz.play, 400)


PLAYS = pytest.mark.parametrize("play", [fuzz.play, schedules.play], ids=["anything", "jobs"])


@PLAYS
def test_the_sources_do_what_the_reference_does(
    switchable: Path, tmp_path: Path, play: Callable[[int, Recorder], object]
) -> None:
    done = replay(switchable, record(tmp_path / "recorded", play, 200))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("200 ")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("jobs", [1000, pytest.param(10_000, marks=pytest.mark.long)])
@PLAYS
def test_the_sources_touch_no_memory_of_others(
    tmp_path: Path, play: Callable[[int, Recorder], object], jobs: int
) -> None:
    done = replay(build(tmp_path, "replay"), record(tmp_path / "recorded", play, jobs))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(f"{jobs} ")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(BREAKS) + 1), ids=list(BREAKS))
def test_a_rule_that_the_sources_break_is_found(switchable: Path, anything: Path, number: int) -> None:
    assert replay(switchable, anything, without=number).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "method", "instead"),
    [
        (Exchange, "_change", lambda *_: None),
        (Exchange, "freeze", Exchange.status),
        (Exchange, "unanswered", lambda _: frozenset()),
        (RoundTable, "_is_void", lambda *_: False),
        (RoundTable, "fence", lambda *_: None),
    ],
)
def test_a_rule_that_the_reference_breaks_is_found(
    switchable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type, method: str, instead: object
) -> None:
    monkeypatch.setattr(part, method, instead)
    assert replay(switchable, record(tmp_path / "recorded", fuzz.play, 50)).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("", ""),
        ("        if (sum.round > round) TakeBack(sum, round);\n", ""),
        ("    if (elastic_) sum.before = sum.errors;\n", "    if (elastic_ && codec) sum.before = sum.errors;\n"),
    ],
    ids=["as-is", "nothing-taken-back", "of-an-earlier-round"],
)
def test_what_the_code_of_a_void_sum_leaves_out_does_not_count(tmp_path: Path, text: str, instead: str) -> None:
    program = build(tmp_path, "made_anew", {text: instead} if text else {})
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (text == ""), done.stderr[-3000:]
