"""Links of the test bed: settings, rates in the notation of tc, and a filter that loses the right part."""

from __future__ import annotations

import pytest

from benchmarks.testbed import Bed, Link
from benchmarks.testbed.link import random_loss, token_bucket


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("up_bits_per_s", 0.0),
        ("down_bits_per_s", -1.0),
        ("queue_s", float("nan")),
        ("up_loss", 1.1),
        ("down_loss", -0.1),
    ],
)
def test_impossible_links_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Link(**{name: value})


@pytest.mark.parametrize("host", ["", "switch", "A", "a.b", "x" * 33])
def test_impossible_hosts_are_refused(host: str) -> None:
    with pytest.raises(ValueError, match="host"):
        Bed({host: Link()})


def test_a_bucket_holds_what_passes_in_a_tick() -> None:
    assert token_bucket(1e9, 0.02) == ("tbf", "rate", "1000000000bit", "burst", "500000b", "latency", "20000us")
    assert "5000b" in token_bucket(1e6, 0.02)


def verdict(words: tuple[str, ...], packet: bytes, random: int) -> int:
    """What a classic BPF program says, for the operations that are used here."""
    _, *instructions = words[-1].split(",")
    accumulator = at = 0
    while True:
        operation, if_true, if_false, operand = map(int, instructions[at].split())
        at += 1
        if operation == 0x06:  # ret
            return operand
        if operation == 0x20:  # ld, here only of the random number
            assert operand == 2**32 - 4096 + 56
            accumulator = random
        elif operation in (0x28, 0x30):  # ldh, ldb
            accumulator = int.from_bytes(packet[operand : operand + (2 if operation == 0x28 else 1)], "big")
        elif operation in (0x15, 0x35):  # jeq, jge
            holds = accumulator == operand if operation == 0x15 else accumulator >= operand
            at += if_true if holds else if_false
        else:
            raise AssertionError(operation)


def packet(ethertype: int, ipv6_next_header: int = 6) -> bytes:
    return bytes(12) + ethertype.to_bytes(2, "big") + bytes(6) + bytes([ipv6_next_header]) + bytes(40)


IPV4, IPV6, ARP = packet(0x0800, ipv6_next_header=58), packet(0x86DD), packet(0x0806)
NEIGHBOUR = packet(0x86DD, ipv6_next_header=58)
DROP, PASS = 2, 2**32 - 1


@pytest.mark.parametrize("lost", [IPV4, IPV6])
def test_ip_packets_are_lost_below_the_threshold(lost: bytes) -> None:
    filter_ = random_loss(0.25)
    assert verdict(filter_, lost, 2**30 - 1) == DROP
    assert verdict(filter_, lost, 2**30) == PASS
    assert verdict(random_loss(0.0), lost, 0) == PASS
    assert verdict(random_loss(1.0), lost, 2**32 - 2) == DROP


@pytest.mark.parametrize("kept", [ARP, NEIGHBOUR])
def test_hosts_always_find_each_other(kept: bytes) -> None:
    assert verdict(random_loss(1.0), kept, 0) == PASS
