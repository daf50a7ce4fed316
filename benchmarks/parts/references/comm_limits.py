"""What sums over a network can reach at best, and the bars of `benchmarks.parts.comm_curve`. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Of a link's rate TCP over IPv4 with timestamps carries this part: 1448 bytes of each Ethernet frame of 1514.
PAYLOAD = 1448 / 1514

Blocks = Mapping[str, Sequence[tuple[float, float]]]  # of each system: (ms, CPU seconds) per operation


@dataclass(frozen=True, slots=True)
class Case:
    """Hosts with workers and a server each, and extra hosts with a server.

    Attributes:
        rates_mbit: rate of the link of each host with workers, both ways.
        extra: number of extra servers.
        extra_mbit: rate of their links.
        ratio_bar: our time may be at most this part of gloo's.
        workers_per_host: on each host with workers; neighbours in a ring.
    """

    rates_mbit: tuple[float, ...]
    extra: int
    extra_mbit: float
    ratio_bar: float
    workers_per_host: int = 1

    @property
    def workers(self) -> int:
        return len(self.rates_mbit) * self.workers_per_host

    @property
    def name(self) -> str:
        """For example 200-200-50, 50x6+6, or 200x2x2 with two workers on each host."""
        equal = len(set(self.rates_mbit)) == 1
        rates = (
            f"{self.rates_mbit[0]:g}x{len(self.rates_mbit)}" if equal else "-".join(f"{r:g}" for r in self.rates_mbit)
        )
        together = f"x{self.workers_per_host}" if self.workers_per_host > 1 else ""
        return rates + together + (f"+{self.extra}" if self.extra else "")

    @property
    def rates(self) -> dict[str, float]:
        """Rate of each host's link in bits per second, by the name of the host."""
        rates = [*self.rates_mbit, *[self.extra_mbit] * self.extra]
        return {f"host-{number}": 1e6 * rate for number, rate in enumerate(rates)}

    def host(self, role: str) -> str:
        """Name of the host of a role; the scheduler is with worker 0, server i on host i."""
        kind, _, number = role.partition("-")
        return f"host-{int(number or 0) // (self.workers_per_host if kind == 'worker' else 1)}"

    def limit_ms(self, size_bytes: int) -> float:
        """The shortest time in which servers on these hosts can sum a buffer.

        Each of n hosts pushes once for its workers. With the share x of the buffer M it sends, and receives,
        M - x + (n - 1) x bytes, a host with an extra server n x. If all links are busy for the same time, the shares
        add to M after this time. No host is done before it has sent M. With equal rates it is
        2 n (n - 1) M / ((n^2 + k n - 2 k) rate) for k <= n extra servers (BytePS, OSDI 2020, section 4.1).
        """
        n, workers = len(self.rates_mbit), sum(self.rates_mbit)
        together = 2 * (n - 1) / (workers + (n - 2) / n * self.extra * self.extra_mbit)
        return _ms(size_bytes * max(together, 1 / min(self.rates_mbit)))

    def ring_limit_ms(self, size_bytes: int) -> float:
        """The shortest time of a ring of n workers: 2 (n - 1) M / (n rate), at the rate of the slowest link."""
        n = self.workers
        return _ms(size_bytes * 2 * (n - 1) / n / min(self.rates_mbit))


def _ms(bytes_per_mbit: float) -> float:
    return bytes_per_mbit * 8 / 1e6 / PAYLOAD * 1e3


CASES = (
    Case((200, 200, 200), extra=0, extra_mbit=200, ratio_bar=1.05),
    Case((200, 200, 200), extra=3, extra_mbit=200, ratio_bar=0.85),
    Case((50,) * 6, extra=6, extra_mbit=50, ratio_bar=0.70),
    Case((200, 200, 50), extra=0, extra_mbit=200, ratio_bar=0.85),
    Case((200, 200), extra=0, extra_mbit=200, ratio_bar=0.85, workers_per_host=2),
    Case((1000, 1000, 1000), extra=0, extra_mbit=1000, ratio_bar=1.05),
    Case((1000, 1000, 1000), extra=3, extra_mbit=1000, ratio_bar=0.85),
)
ONE_HOST_BARS = {"ratio_to_gloo": 0.5, "ratio_to_floor": 3.0}
MODEL_BARS = {"ratio_to_gloo": 0.85, "different_weights": 0}


def summary(blocks: Blocks) -> dict[str, Any]:
    """Medians over blocks, and of our time by that of each other system over pairs of neighbouring blocks."""
    times = {system: [ms for ms, _ in measured] for system, measured in blocks.items()}
    figures: dict[str, Any] = {f"{system}_ms": statistics.median(measured) for system, measured in times.items()}
    figures["cpu_s"] = {system: statistics.fmean(cpu for _, cpu in measured) for system, measured in blocks.items()}
    for system in times.keys() - {"ours"}:
        ratios = [ours / other for ours, other in zip(times["ours"], times[system], strict=True)]
        figures[f"ratio_to_{system}"] = statistics.median(ratios)
        figures[f"spread_to_{system}"] = [min(ratios), max(ratios)]
    return figures


def judge(figures: Mapping[str, Any], bars: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Each bar with the figure that is to be at most as large."""
    return {
        name: {"figure": figures[name], "at_most": bar, "met": bool(figures[name] <= bar)} for name, bar in bars.items()
    }
