"""Sums when workers and servers are lost: the sources as they are, on a network that elastic/story.cc plays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compiled import compiled
from tests.unit.byteps_build.sources_tree import STUBS, write_tree

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

SEEDS = 100
FLAGS = ("-std=c++11", "-Wall", "-O1", "-pthread")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")


def build(folder: Path, without: str = "", instead: str = "", played: str = "story") -> Path:
    """The program; `without`: a text in the sources that is replaced.

    Broken sources are compiled without sanitizers, which takes a fifth of the time: the program itself finds the fault.
    """
    write_tree(folder, without, instead)
    sanitizers = SANITIZERS if instead == without else ()
    return compiled(STUBS / f"{played}.cc", [*FLAGS, *sanitizers, f"-I{folder}", f"-I{STUBS}"])


def play(program: Path, seeds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, "0", str(seeds)], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_survivors_see_the_same_sums(tmp_path: Path) -> None:
    done = play(build(tmp_path), SEEDS)
    assert done.returncode == 0, done.stderr[-3000:]
    deaths, server_deaths, decisions, apart, from_the_dead, cut_off, leaves, entries = map(int, done.stdout.split())
    assert deaths > SEEDS and server_deaths > SEEDS // 2 and decisions > SEEDS
    assert apart > SEEDS // 10 and from_the_dead > SEEDS // 4 and cut_off > SEEDS // 20
    assert leaves > SEEDS // 4 and entries > SEEDS // 10


@pytest.mark.slow
def test_of_one_round_only_the_newest_generation_counts(tmp_path: Path) -> None:
    same_round = "head.round != push.round"
    done = play(build(tmp_path, f"{same_round} || head.generation != push.generation", same_round), SEEDS)
    assert done.returncode != 0


REST = "return IsAwaited(head) ? place : Waste(sender, head);"


@pytest.mark.slow
@pytest.mark.parametrize(("rest", "is_right"), [(REST, True), ("return place;", False)], ids=["as-is", "without"])
def test_the_rest_of_a_void_answer_goes_elsewhere(tmp_path: Path, rest: str, is_right: bool) -> None:
    program = build(tmp_path, REST, rest, played="void_rest")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == is_right, done.stderr[-3000:]


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
    program = build(tmp_path, text, instead, played="made_anew")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (text == ""), done.stderr[-3000:]


@pytest.mark.slow
def test_a_worker_that_comes_late_must_know_the_round(tmp_path: Path) -> None:
    known = "    generation_ = generation;\n    round_ = round;\n"
    done = play(build(tmp_path, known, known.partition("    round_")[0]), SEEDS)
    assert done.returncode != 0


@pytest.mark.slow
def test_all_must_wait_for_a_worker_that_comes_late(tmp_path: Path) -> None:
    within = 'changes within round " << round_;\n    '
    done = play(build(tmp_path, f"{within}contributions_ = contributions;", f"{within}(void)contributions;"), SEEDS)
    assert done.returncode != 0
