"""How long workers with CPU quotas wait for each other if their batch sizes match their speeds exactly.

    python -m benchmarks.studies.bed.quota_waiting

A quota lets a worker compute at full speed until its share of the period is used, and stops it until the next period.
So workers with the same long-run time per iteration finish at different moments, and wait. The calculation models this
rule alone: one core per worker, periods that begin at random moments, work that varies by 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.launch.emulation.speeds import core_quotas

DEMO_SPEEDS = (1.0, 0.5, 0.25)
DEMO_CORES = 2
EXCHANGE_MS = 4.0  # per iteration, for the exchange alone
SPREAD = 0.02  # standard deviation of the work of an iteration, relative


@dataclass(slots=True)
class Quota:
    """The CPU quota of one worker, in milliseconds; `next_ms` is when its next period begins."""

    cores: float
    period_ms: float
    next_ms: float
    left_ms: float = 0.0

    def finish_ms(self, start_ms: float, work_ms: float) -> float:
        """When `work_ms` of CPU time that begin at `start_ms` are done."""
        now_ms = start_ms
        while True:
            while self.next_ms <= now_ms:
                self._renew()
            ran_ms = min(work_ms, self.left_ms, self.next_ms - now_ms)
            work_ms, self.left_ms, now_ms = work_ms - ran_ms, self.left_ms - ran_ms, now_ms + ran_ms
            if work_ms <= 0:
                return now_ms
            now_ms = self.next_ms

    def _renew(self) -> None:
        self.next_ms += self.period_ms
        self.left_ms = self.cores * self.period_ms


def waiting(
    cores: tuple[float, ...], period_ms: float, computing_ms: float, rng: np.random.Generator, iterations: int = 400
) -> tuple[NDArray[np.float64], float]:
    """(part of the time that each worker waits, mean milliseconds per iteration).

    `computing_ms` is the long-run time of an iteration's work, the same for each worker: the sizes match the quotas.
    """
    quotas = [Quota(share, period_ms, next_ms=float(rng.uniform(0, period_ms))) for share in cores]
    now_ms, waited_ms = 0.0, np.zeros(len(cores))
    for _ in range(iterations):
        work_ms = computing_ms * np.array(cores) * (1 + SPREAD * rng.standard_normal(len(cores)))
        ready_ms = np.array([q.finish_ms(now_ms, float(work)) for q, work in zip(quotas, work_ms, strict=True)])
        waited_ms += ready_ms.max() - ready_ms
        now_ms = float(ready_ms.max()) + EXCHANGE_MS
    return waited_ms / now_ms, now_ms / iterations


def main() -> None:
    """Print waiting and time per iteration of the demo's workers for several periods."""
    cores = core_quotas(DEMO_SPEEDS, DEMO_CORES)
    print("computing  period  iteration  waiting")
    for computing_ms in (70.0, 125.0):
        for period_ms in (20.0, 10.0, 5.0, 2.0):
            waits, iteration_ms = waiting(cores, period_ms, computing_ms, np.random.default_rng(0))
            shown = "  ".join(f"{100 * wait:3.0f} %" for wait in waits)
            print(f"{computing_ms:6.0f} ms  {period_ms:3.0f} ms  {iteration_ms:6.1f} ms  {shown}")


if __name__ == "__main__":
    main()
