"""When gradients change their wire, and when they go back."""

from __future__ import annotations

import itertools
import math

import pytest

from worker_hooks.planning.wire_choice import BLOCK, BYTES, Block, WireChoice, WireState, choose_wire

WIRES = tuple(BYTES)
BATCH = 64


class Link:
    """A cluster that computes for `compute_s` and sums float32 in `sum_s`; a part `hidden` of computing hides sums."""

    def __init__(self, compute_s: float = 1.0, sum_s: float = 0.0, hidden: float = 0.5) -> None:
        self.compute_s, self.sum_s, self.hidden = compute_s, sum_s, hidden
        self.coding_s = 0.0  # of another wire than float32
        self.choice = WireChoice(WIRES)
        self.iteration = 0
        self.changes: list[tuple[int, str]] = []  # first iteration of each wire
        self.reasons: list[str] = []
        self._before = (0.0, 0.0)

    def exposed_s(self, wire: str) -> float:
        return max(self.sum_s * BYTES[wire] / BYTES["float32"] - self.hidden * self.compute_s, 0.0)

    def trains(self, blocks: float, loss: float = 1.0, batch: float = BATCH) -> list[tuple[int, str]]:
        """The changes meanwhile."""
        known = len(self.changes)
        for _ in range(round(blocks * BLOCK)):
            wire = self.choice.wire
            compute_s = self.compute_s * batch / BATCH + (self.coding_s if wire != "float32" else 0.0)
            noise = 1 + 0.03 * math.sin(self.iteration)
            lasted_s, exposed_s = self._before
            self._before = (compute_s + self.exposed_s(wire)) * noise, self.exposed_s(wire) * noise
            if reason := self.choice.see(lasted_s, exposed_s, batch, loss * noise, False):
                self.changes.append((self.iteration + 1, self.choice.wire))
                self.reasons.append(reason)
            self.iteration += 1
        return self.changes[known:]


def wires(changes: list[tuple[int, str]]) -> list[str]:
    return [wire for _, wire in changes]


def test_behind_a_slow_link_gradients_become_narrower_step_by_step_and_stay_so() -> None:
    link = Link(sum_s=6.0)
    assert wires(link.trains(100)) == ["bf16", "int8"]
    assert [iteration for iteration, _ in link.changes] == [BLOCK + 1, 2 * BLOCK + 2], "a block between them"
    assert link.reasons[0] == "workers wait for the network in 85 % of the time, of which bf16 saves 42 % at least"


@pytest.mark.parametrize(("sum_s", "narrowest"), [(0.3, "float32"), (0.7, "float32"), (0.8, "bf16"), (2.0, "int8")])
def test_as_narrow_as_is_worth_it(sum_s: float, narrowest: str) -> None:
    """Sums of 0.7 s expose 0.2 s of 1.2 s: less than a fifth."""
    link = Link(sum_s=sum_s)
    link.trains(5)
    assert link.choice.wire == narrowest


def test_a_wire_that_does_not_pay_is_left_after_a_block_and_tried_less_and_less_often() -> None:
    link = Link(sum_s=1.0)
    link.coding_s = 0.5
    assert wires(link.trains(3)) == ["bf16", "float32"]
    assert link.reasons[-1] == "bf16 has not made iterations shorter"
    tries = link.trains(30)
    assert wires(tries) == ["bf16", "float32"] * 4
    at = [iteration for iteration, wire in link.changes if wire == "bf16"]
    assert [round((later - earlier) / BLOCK) for earlier, later in itertools.pairwise(at)] == [3, 4, 6, 10]


def test_other_work_of_the_machine_in_half_of_a_block_does_not_count() -> None:
    link = Link(sum_s=6.0)
    link.trains(1.3)
    link.compute_s = 10.0
    link.trains(0.5)
    link.compute_s = 1.0
    link.trains(0.3)
    assert wires(link.changes) == ["bf16", "int8"]


def test_where_the_link_is_fast_again_float32_comes_back() -> None:
    link = Link(sum_s=6.0)
    link.trains(10)
    link.sum_s = 0.3
    assert wires(link.trains(20)) == ["bf16", "float32"]
    assert not link.trains(100)


def test_a_look_at_a_wider_wire_is_short_where_the_narrower_one_pays_and_becomes_rare() -> None:
    """With bf16 nothing is exposed, with float32 a third: only trying tells."""
    link = Link(sum_s=1.0)
    changes = link.trains(120)
    assert wires(changes) == ["bf16", *["float32", "bf16"] * 3]
    in_float32 = [later - earlier for (earlier, wire), (later, _) in itertools.pairwise(changes) if wire == "float32"]
    assert max(in_float32) <= BLOCK + 1


def test_larger_batches_do_not_count_as_a_wire_that_does_not_pay() -> None:
    link = Link(sum_s=6.0)
    link.trains(1.1)
    assert link.choice.wire == "bf16"
    link.trains(1, batch=3 * BATCH)
    assert link.choice.wire == "int8"


def test_a_loss_that_rises_ends_it_for_the_run() -> None:
    link = Link(sum_s=6.0)
    link.trains(5)
    changes = link.trains(1, loss=2.0)
    assert wires(changes) == ["float32"] and changes[0][0] < 5 * BLOCK + 10
    assert link.reasons[-1] == "the loss rises; float32 stays for the rest of the run"
    assert not link.trains(50)


def test_a_loss_that_rises_with_float32_is_not_of_the_wire() -> None:
    link = Link(sum_s=0.1)
    assert not link.trains(5) and not link.trains(1, loss=2.0)
    link.sum_s = 6.0
    assert wires(link.trains(3, loss=2.0)) == ["bf16", "int8"]


def test_the_guard_of_the_learning_rate_counts_too() -> None:
    choice = Link(sum_s=6.0)
    choice.trains(2)
    assert choice.choice.see(1.0, 0.5, BATCH, math.nan, True)
    assert choice.choice.wire == "float32"


def test_a_sum_without_samples_or_times_tells_nothing() -> None:
    link = Link(sum_s=6.0)
    for _ in range(2 * BLOCK):
        assert not link.choice.see(0.0, 0.0, BATCH, 1.0, False) and not link.choice.see(1.0, 0.9, 0, math.nan, False)


def test_who_enters_goes_on_as_the_others_do() -> None:
    link = Link(sum_s=6.0)
    link.trains(1.5)
    link.choice.renew()
    newcomer = WireChoice(WIRES)
    newcomer.take_over(link.choice.packed())
    changes = 0
    for iteration in range(3 * BLOCK):
        told = (2.0, 1.0, BATCH, 1 + 0.01 * math.sin(iteration), False)
        reason = link.choice.see(*told)
        assert (newcomer.see(*told), newcomer.wire) == (reason, link.choice.wire)
        changes += bool(reason)
    assert changes == 2, "int8, which does not pay here"


def test_a_ring_whose_workers_share_hosts_may_have_int8_alone() -> None:
    state, _ = choose_wire(("float32", "int8"), WireState(), Block(2.0, 1.0, BATCH))
    assert state.wire == "int8"
    stays = choose_wire(("float32",), WireState(), Block(2.0, 1.0, BATCH))
    assert stays == (WireState(), "")
