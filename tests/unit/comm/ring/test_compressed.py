"""Sums over real rings whose values travel encoded; all members are in one process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from dynamix_ps.comm.ring.codecs import CODECS
from dynamix_ps.comm.ring.compressed import LEAST_VALUES, CompressedSums, saves_bytes
from dynamix_ps.comm.ring.group import RingGroup

pytestmark = pytest.mark.timeout(60)
PATIENCE = timedelta(seconds=20)
BEHIND = 9  # values that travel as they are


@contextmanager
def rings(members: int, wire: str) -> Iterator[list[CompressedSums]]:
    """The sums of all members. Who is taken out of the list is gone."""
    store, made = HashStore(), {}

    def make(rank: int) -> None:
        exact, *phases = (
            RingGroup(PrefixStore(name, store), rank, members, PATIENCE) for name in ("exact", "scatter", "gather")
        )
        made[rank] = CompressedSums(wire, *phases, exact.sum)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        _on_all([lambda rank=rank: make(rank) for rank in range(members)])
    all_sums = [made.pop(rank) for rank in range(members)]
    try:
        yield all_sums
    finally:
        _on_all([one.close for one in all_sums])
        assert not any(thread.is_alive() for one in all_sums for thread in one._threads)


def _on_all(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE.total_seconds())
        assert not thread.is_alive()


def summed(all_sums: list[CompressedSums], values: dict[str, list[torch.Tensor]], begins: list[int]) -> None:
    """All buffers, in flight together; each becomes what its worker gets."""
    works = [
        [sums.start(name, buffers[rank], begins[rank]) for name, buffers in values.items()]
        for rank, sums in enumerate(all_sums)
    ]
    for work in (one for started in works for one in started):
        work.wait(PATIENCE)
        assert work.is_completed() and work.is_success()
        work.deliver()


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("members", [2, 3, 4])
def test_sums(members: int, wire: str) -> None:
    """Several buffers, which pieces do not divide; in every third round some have no part in a beginning.

    The values are the same in each round: without feedback the errors of all rounds would add up.
    """
    least = LEAST_VALUES
    sizes = {"a": least, "b": least + 1, "c": 2 * least + 777, "d": least + 255}
    generator = torch.Generator().manual_seed(members)
    with rings(members, wire) as all_sums:
        owed = {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}
        for sums in all_sums:
            for name, size in sizes.items():
                sums.declare(name, size)
                assert sums.takes(name, torch.zeros(1)) and not sums.takes(name, torch.zeros(1, dtype=torch.float64))
        own = {
            name: [torch.randn(size + BEHIND, generator=generator) for _ in range(members)]
            for name, size in sizes.items()
        }
        for turn in range(12):
            begins = [turn % 3 // 2 * (rank * least // 2 + 5) for rank in range(members)]
            got = {name: [one.clone() for one in buffers] for name, buffers in own.items()}
            summed(all_sums, got, begins)
            for name, size in sizes.items():
                wanted = torch.zeros(size + BEHIND, dtype=torch.float64)
                for begin, one in zip(begins, own[name], strict=True):
                    wanted[begin:] += one[begin:]
                for begin, one, before in zip(begins, got[name], own[name], strict=True):
                    assert torch.equal(one[:begin], before[:begin]), "stay as they are"
                    assert torch.equal(one[max(begins) :], got[name][0][max(begins) :]), "not the same on all"
                    exact = slice(max(size, begin), None)
                    assert torch.allclose(one[exact].double(), wanted[exact], atol=1e-5), "behind: exact"
                first = min(begins)  # whose worker has all that is in the sum
                missing = wanted[first:size] - got[name][begins.index(first)][first:size]
                assert missing.abs().max() < 0.2
                owed[name][first:] += missing
        for name in sizes:
            assert 0 < owed[name].abs().max() < 0.1, "does not grow with the rounds"


@pytest.mark.parametrize("wire", CODECS)
def test_a_sum_in_which_nobody_has_a_part_leaves_what_is_owed(wire: str) -> None:
    """As of an evaluation: what rounding has left out comes with the next gradients."""
    size, members = LEAST_VALUES + 100, 2
    generator = torch.Generator().manual_seed(1)
    ends = []
    for announced in (False, True):
        generator.manual_seed(1)
        with rings(members, wire) as all_sums:
            for sums in all_sums:
                sums.declare("a", size)
            for turn in range(4):
                values = {"a": [torch.randn(size + BEHIND, generator=generator) for _ in range(members)]}
                if announced and turn:
                    summed(all_sums, {"a": [torch.ones(size + BEHIND) for _ in range(members)]}, [size] * members)
                summed(all_sums, values, [0] * members)
            ends.append(values["a"][0])
    assert torch.equal(*ends)


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("place", [0, LEAST_VALUES // 2 + 300, LEAST_VALUES])
def test_all_see_a_value_that_is_not_finite_and_the_next_sum_is_finite(wire: str, place: int) -> None:
    size = LEAST_VALUES + 1
    with rings(2, wire) as all_sums:
        for sums in all_sums:
            sums.declare("a", size)
        values = [torch.ones(size), torch.ones(size)]
        values[1][place] = float("nan")
        summed(all_sums, {"a": values}, [0, 0])
        assert all(not one[place].isfinite() and 0 < (~one.isfinite()).sum() <= 256 for one in values)
        values = [torch.ones(size), torch.ones(size)]
        summed(all_sums, {"a": values}, [0, 0])
        assert all(torch.equal(one, torch.full((size,), 2.0)) for one in values)


def test_a_buffer_declared_anew_owes_nothing() -> None:
    size = LEAST_VALUES
    generator = torch.Generator().manual_seed(1)
    with rings(2, "int8") as all_sums:
        for _ in range(2):
            for sums in all_sums:
                sums.declare("a", size)
            values = [torch.randn(size, generator=generator) for _ in range(2)]
            mine = [one.clone() for one in values]
            summed(all_sums, {"a": mine}, [0, 0])
            assert (mine[0] - sum(values)).abs().max() < 0.06
        for sums in all_sums:
            sums.declare("a", size)
        zeros = [torch.zeros(size), torch.zeros(size)]
        summed(all_sums, {"a": zeros}, [0, 0])
        assert not zeros[0].any()


def test_a_wait_ends_at_its_limit_and_fails_when_the_other_worker_is_gone() -> None:
    with rings(2, "int8") as all_sums:
        all_sums[0].declare("a", LEAST_VALUES)
        work = all_sums[0].start("a", torch.ones(LEAST_VALUES), 0)
        with pytest.raises(RuntimeError, match="first phase"):
            work.wait(timedelta(milliseconds=20))
        assert not work.is_completed()
        all_sums.pop().close()
        gc.collect()  # its connections close
        with pytest.raises(RuntimeError, match=r"onnection|pair"):
            work.wait(PATIENCE)
        assert work.is_completed() and not work.is_success()


def test_small_buffers_and_those_without_codec_travel_as_they_are() -> None:
    with rings(2, "bf16") as [sums, _]:
        sums.declare("a", LEAST_VALUES - 1)
        sums.declare("b", LEAST_VALUES)
        assert sums.takes("b", torch.zeros(1))
        sums.set_wire("b", "float32")
        assert not any(sums.takes(name, torch.zeros(1)) for name in ("a", "b", "never declared"))


@pytest.mark.parametrize(
    ("hosts", "bf16", "int8"),
    [
        ("aaaa", True, True),  # no link between hosts: what is asked for is done
        ("ab", True, True),
        ("abcdefgh", True, True),
        ("aabb", True, True),
        ("aaaabbbb", True, True),
        ("aaaaaabbbbbb", False, True),
        ("a" * 8 + "b" * 8, False, True),
        ("a" * 16 + "b" * 16, False, False),
    ],
)
def test_where_fewer_bytes_leave_the_busiest_host(hosts: str, bf16: bool, int8: bool) -> None:
    assert (saves_bytes(hosts, CODECS["bf16"]), saves_bytes(hosts, CODECS["int8"])) == (bf16, int8)
