"""Sums when workers and servers are lost: the sources do what the reference in tests/models/membership does."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.compiled import compiled
from tests.models.membership.checker import CASES
from tests.models.membership.exchange import Exchange
from tests.models.membership.faults import disturbances
from tests.models.membership.job import References
from tests.models.membership.recorded import Recorder
from tests.models.membership.round_table import RoundTable
from tests.models.membership.world import World
from tests.unit.byteps_build import fuzz
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


OVER_SERVERS = [case for case in CASES.values() if case.job.servers]


def play_job(seed: int, recorder: Recorder) -> None:
    """A small job of the model of membership."""
    case = OVER_SERVERS[seed % len(OVER_SERVERS)]
    workers, rounds = min(case.job.workers, 4), min(case.job.rounds, 5)
    job = replace(case.job, workers=workers, rounds=rounds, pieces=(1 + seed % 3, 1))
    world = World(job, seed, References(recorder.exchange, recorder.table))
    world.run(disturbances(random.Random(f"faults {seed}"), case.faults, 0.02))


def record(file: Path, play: Callable[[int, Recorder], None], seeds: range) -> Path:
    """Schedules of the reference."""
    with file.open("w") as text:
        recorder = Recorder(text)
        for seed in seeds:
            recorder.begin(seed)
            play(seed, recorder)
    return file


def replay(program: Path, file: Path, without: int = 0) -> subprocess.CompletedProcess[str]:
    """The same in C++. `without`: number of a rule of `BREAKS`."""
    environ = os.environ | {"BREAK": str(without)}
    return subprocess.run([program, file], capture_output=True, text=True, timeout=500, check=False, env=environ)


def check_same(program: Path, file: Path, jobs: int) -> None:
    done = replay(program, file)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[0] == str(jobs)
    file.unlink()


@pytest.fixture(scope="module")
def switchable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in which each of `BREAKS` can be switched on."""
    return build(tmp_path_factory.mktemp("sources"), "replay", switched(BREAKS.values()))


@pytest.fixture(scope="module")
def anything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schedules of events in any order."""
    return record(tmp_path_factory.mktemp("recorded") / "anything", fuzz.play, range(400))


PLAYS = pytest.mark.parametrize("play", [fuzz.play, play_job], ids=["any events", "jobs of the model"])


@PLAYS
def test_the_sources_do_what_the_reference_does(
    switchable: Path, tmp_path: Path, play: Callable[[int, Recorder], None]
) -> None:
    check_same(switchable, record(tmp_path / "recorded", play, range(200)), 200)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("thousand", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 10))])
@PLAYS
def test_they_do_so_in_thousands_of_schedules_and_touch_no_memory_of_others(
    tmp_path: Path, play: Callable[[int, Recorder], None], thousand: int
) -> None:
    seeds = range(1000 * thousand, 1000 * (thousand + 1))
    check_same(build(tmp_path, "replay"), record(tmp_path / "recorded", play, seeds), 1000)


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
        (RoundTable, "_follow", lambda *_: None),
    ],
)
def test_a_rule_that_the_reference_breaks_is_found(
    switchable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type, method: str, instead: object
) -> None:
    monkeypatch.setattr(part, method, instead)
    assert replay(switchable, record(tmp_path / "recorded", fuzz.play, range(50))).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("", ""),
        ("sum.errors.swap(sum.before);", ""),
        ("    ++sum.round;\n", ""),
        ("    if (elastic_) sum.before = sum.errors;\n", "    if (elastic_ && codec) sum.before = sum.errors;\n"),
    ],
    ids=["as-is", "nothing-taken-back", "not-over", "of-an-earlier-round"],
)
def test_what_the_code_of_a_void_sum_leaves_out_does_not_count(tmp_path: Path, text: str, instead: str) -> None:
    program = build(tmp_path, "made_anew", {text: instead} if text else {})
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (text == ""), done.stderr[-3000:]
