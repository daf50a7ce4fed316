"""Sums when workers and servers are lost: the sources as they are, on a network that elastic/story.cc plays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dynamix_ps.byteps_build.recipe import HERE
from tests.compiled import compiled

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

STORY = Path(__file__).parent / "elastic"
PLACES = {
    "ps": ("pieces.h",),
    "byteps/common": ("exchange.h", "elastic_exchange.h", "lane.h", "host_push.h", "host_sum.h", "segment.h", "sums.h"),
    "byteps/server": ("round_table.h",),
}
STUBS = ("ps/ps.h", "ps/sarray.h", "dmlc/logging.h", "byteps/common/common.h", "byteps/common/half.h")
SEEDS = 100
FLAGS = ("-std=c++11", "-Wall", "-O1", "-pthread")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")


def build(folder: Path, without: str = "", instead: str = "", played: str = "story") -> Path:
    """The program; `without`: a text in the sources that is replaced.

    Broken sources are compiled without sanitizers, which takes a fifth of the time: the program itself finds the fault.
    """
    found = 0
    for place, names in PLACES.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            text = (HERE / "sources" / name).read_text()
            if without:
                found += text.count(without)
                text = text.replace(without, instead)
            (folder / place / name).write_text(text)
    assert not without or found == 1, f"{found} times in the sources: {without}"
    for stub in STUBS:
        (folder / stub).parent.mkdir(parents=True, exist_ok=True)
        (folder / stub).write_text('#include "stubs.h"\n')
    sanitizers = SANITIZERS if instead == without else ()
    return compiled(STORY / f"{played}.cc", [*FLAGS, *sanitizers, f"-I{folder}", f"-I{STORY}"])


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
def test_a_worker_that_comes_late_must_know_the_round(tmp_path: Path) -> None:
    known = "    generation_ = generation;\n    round_ = round;\n"
    done = play(build(tmp_path, known, known.partition("    round_")[0]), SEEDS)
    assert done.returncode != 0


@pytest.mark.slow
def test_all_must_wait_for_a_worker_that_comes_late(tmp_path: Path) -> None:
    within = 'changes within round " << round_;\n    '
    done = play(build(tmp_path, f"{within}contributions_ = contributions;", f"{within}(void)contributions;"), SEEDS)
    assert done.returncode != 0
