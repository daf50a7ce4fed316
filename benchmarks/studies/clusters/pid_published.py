"""Does `pid` match the published results of dynamic batching (arXiv 2305.12213)? Simulated.

    python -m benchmarks.studies.clusters.pid_published --json FILE

- Figure 4a: three workers with 3, 5 and 12 cores and equal first sizes settle after two adjustments. Bar: with every
  seed at most 3 adjustments in `SETTLING_WINDOWS` windows; then no two computing times differ by more than twice the
  dead-band.
- Speed-up: ResNet-50 at H-level 2 (9, 12, 18 cores) is 2x as fast as with uniform sizes, at level 10 (2, 17, 20) 2.4x.
  Bar: time per epoch of uniform static over that of pid at level 10 is at least 2. The epoch is the first one and
  includes settling. If an iteration is computing alone, linear in the batch, the split of an unchanged global batch
  gains at most mean cores / fewest cores: 1.44x at level 2, 6.5x at level 10. So the 2x at level 2 has other causes.

The cost of a sample (`CORE_S`) is chosen by us. All other parameters of the clusters are the simulator's defaults
(dynamix_ps/sim/scenario/load.py). pid lets the global batch grow, which spreads the fixed part of an iteration over
more samples. The table also shows `pid-keep`, which keeps the global batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dynamix_ps.arbitrator.planner import guard
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.baselines.pid import PidPolicy
from dynamix_ps.policy.baselines.static import StaticPolicy
from dynamix_ps.policy.baselines.steady_times import DEAD_BAND
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import SimulatedWorker

CORE_S = 8e-3  # of one core per sample
FIRST_SIZE = 32
SETTLING_WINDOWS = 100
SETTLING_CORES = (3, 5, 12)
LEVELS = {2: (9, 12, 18), 10: (2, 17, 20)}
PUBLISHED = {2: 2.0, 10: 2.4}
MOST_ADJUSTMENTS, LEAST_SPEEDUP = 3, 2.0


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a policy on a cluster."""

    time_s: float
    adjustments: int
    spread: float  # (longest - shortest) / mean of the computing times in the last window
    sizes: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    figures = measure(args.seeds)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if figures["passed"] else 1)


def measure(seeds: int) -> dict[str, Any]:
    """All figures, and whether the bars are met."""
    settled = [run(SETTLING_CORES, PidPolicy(3), seed, windows=SETTLING_WINDOWS) for seed in range(seeds)]
    adjustments, spread = max(one.adjustments for one in settled), max(one.spread for one in settled)
    levels = {level: epochs(cores, seeds) for level, cores in LEVELS.items()}
    settles = adjustments <= MOST_ADJUSTMENTS and spread <= 2 * DEAD_BAND
    settling = {"adjustments": adjustments, "spread": spread, "sizes": settled[0].sizes}
    passed = settles and levels[10]["pid_speedup"] >= LEAST_SPEEDUP
    return {"seeds": seeds, "settling": settling, "levels": levels, "passed": passed}


def epochs(cores: tuple[int, ...], seeds: int) -> dict[str, float]:
    """Mean seconds of the first epoch, and how many times faster than uniform static that is."""
    uniform = (FIRST_SIZE,) * len(cores)
    times_s = {
        "static": [run(cores, StaticPolicy(uniform), seed).time_s for seed in range(seeds)],
        "pid": [run(cores, PidPolicy(len(cores)), seed).time_s for seed in range(seeds)],
        "pid_keep": [run(cores, PidPolicy(len(cores), keep_global=True), seed).time_s for seed in range(seeds)],
    }
    mean_s = {name: float(np.mean(times)) for name, times in times_s.items()}
    speedups = {f"{name}_speedup": mean_s["static"] / mean_s[name] for name in ("pid", "pid_keep")}
    return {f"{name}_s": seconds for name, seconds in mean_s.items()} | speedups


def run(cores: tuple[int, ...], policy: Policy, seed: int, windows: int | None = None) -> Run:
    """Train for `windows` windows, or for one epoch if that is None."""
    workers = tuple(SimulatedWorker(per_sample_s=CORE_S / count) for count in cores)
    scenario = Scenario(name="published", workers=workers, initial_batch=FIRST_SIZE, lr_rule="none")
    simulator = Simulator(parameters_of((scenario,)), np.random.default_rng(seed))
    adjustments = 0
    sizes = simulator.sizes
    while simulator.windows[0] < windows if windows else simulator.samples[0] < scenario.training.data_samples:
        simulator.step(sizes)
        view = simulator.views()[0]
        wanted = guard(policy.decide(view).batch_sizes, view.plan.batch_sizes, view.bounds).batch_sizes
        adjustments += wanted != view.plan.batch_sizes
        sizes = np.array([wanted])
    assert simulator.times is not None
    times_s = simulator.times.compute_s[0]
    spread = float(np.ptp(times_s) / times_s.mean())
    return Run(float(simulator.time_s[0]), adjustments, spread, tuple(simulator.sizes[0].tolist()))


def show(figures: dict[str, Any]) -> None:
    settling = figures["settling"]
    console = Console()
    console.print(
        f"cores {SETTLING_CORES}: at most {settling['adjustments']} adjustments (published 2, bar {MOST_ADJUSTMENTS}), "
        f"computing times then within {settling['spread']:.1%}, sizes {settling['sizes']}",
        highlight=False,
    )
    table = Table(title="the first epoch, simulated")
    for column in ("H-level", "cores", "static s", "pid s", "pid-keep s", "pid is faster", "pid-keep", "published"):
        table.add_column(column, justify="right")
    for level, one in figures["levels"].items():
        seconds = [f"{one[f'{name}_s']:.0f}" for name in ("static", "pid", "pid_keep")]
        speedups = [f"{one['pid_speedup']:.2f}x", f"{one['pid_keep_speedup']:.2f}x", f"{PUBLISHED[level]}x"]
        table.add_row(str(level), " ".join(map(str, LEVELS[level])), *seconds, *speedups)
    console.print(table)
    console.print(f"bars: {'met' if figures['passed'] else 'missed'}")


if __name__ == "__main__":
    main()
