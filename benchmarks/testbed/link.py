"""Properties of a link between a host and the switch. Pure.

A token bucket (`tbf`) emulates rates; a classic BPF filter, which draws a random number per packet, emulates losses.
Both act where a packet leaves or enters the switch, never in the sender. A sender notices when it drops its own packets
and sends the data again without counting a retransmission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_TICK_HZ = 250  # a token bucket must hold what its rate lets through in one timer tick
_SMALLEST_BURST_BYTES = 5_000  # three packets

# classic BPF: (operation, jump if true, jump if false, operand); jumps count from the next instruction
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x30, 0x28, 0x20, 0x15, 0x35, 0x06
_ETHERTYPE_AT, _IPV6_NEXT_HEADER_AT = 12, 20
_IPV4, _IPV6, _ICMPV6 = 0x0800, 0x86DD, 58
_RANDOM = 2**32 - 4096 + 56  # pseudo address: SKF_AD_OFF + SKF_AD_RANDOM
_PASS, _DROP = 2**32 - 1, 2  # TC_ACT_UNSPEC, TC_ACT_SHOT


@dataclass(frozen=True, slots=True)
class Link:
    """One host's link. `up` is from the host to the switch, `down` from the switch to the host."""

    up_bits_per_s: float = math.inf
    down_bits_per_s: float = math.inf
    up_loss: float = 0.0  # probability that a packet is lost
    down_loss: float = 0.0
    queue_s: float = 0.02  # longest wait of a packet for a limited rate; packets that would wait longer are dropped
    congestion: str = "cubic"  # congestion control of the host

    def __post_init__(self) -> None:
        """Raises ValueError for a rate that is not positive or a loss outside 0 to 1."""
        for name in ("up_bits_per_s", "down_bits_per_s", "queue_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a positive number")
        for name in ("up_loss", "down_loss"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a probability")


def token_bucket(bits_per_s: float, queue_s: float) -> tuple[str, ...]:
    """Arguments of `tc` that limit a rate."""
    burst_bytes = max(_SMALLEST_BURST_BYTES, round(bits_per_s / 8 / _TICK_HZ))
    rate, burst, latency = f"{round(bits_per_s)}bit", f"{burst_bytes}b", f"{round(queue_s * 1e6)}us"
    return ("tbf", "rate", rate, "burst", burst, "latency", latency)


def random_loss(probability: float) -> tuple[str, ...]:
    """Arguments of `tc` that drop IP packets at random.

    ARP and IPv6 neighbour discovery always pass, so that hosts find each other at any loss (chosen by us).
    """
    threshold = min(2**32 - 1, round(probability * 2**32))
    program = (
        (_LOAD_HALF, 0, 0, _ETHERTYPE_AT),
        (_JUMP_EQUAL, 3, 0, _IPV4),
        (_JUMP_EQUAL, 0, 4, _IPV6),
        (_LOAD_BYTE, 0, 0, _IPV6_NEXT_HEADER_AT),
        (_JUMP_EQUAL, 2, 0, _ICMPV6),
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_JUMP_AT_LEAST, 0, 1, threshold),
        (_RETURN, 0, 0, _PASS),
        (_RETURN, 0, 0, _DROP),
    )
    bytecode = ",".join([str(len(program)), *(" ".join(map(str, instruction)) for instruction in program)])
    return ("bpf", "da", "bytecode", bytecode)
