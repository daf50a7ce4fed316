"""How much any choice of batch sizes can gain on the clusters of the study of the agent (simulated).

    python -m benchmarks.studies.clusters.ceiling

Times to the target over that of the best fixed size, tuned on the reported seeds: of the policy that ships, and of an
oracle that knows costs, noise scale and the coming window (dynamix_ps/sim/contest/oracle.py). What the oracle needs is
the floor, so a bar below it cannot be met, whatever a policy learns. The trainings are those of the scenarios, not the
real ones of the study. Interquartile means over paired seeds, with a bootstrap interval of 95 %.
"""

from __future__ import annotations

import numpy as np

from benchmarks.studies.agent.cells import AGENT, SCENARIOS
from benchmarks.studies.study import Study, run_study
from benchmarks.studies.trainings import shortened
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.contest.comparison import Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import TUNED, Contest, compete
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.load import load_scenario

ORACLE = "oracle"
SEEDS = 8
RATIOS = {
    f"{AGENT} / best fixed size": (AGENT, TUNED),
    f"{ORACLE} / best fixed size": (ORACLE, TUNED),
    f"{ORACLE} / {AGENT}": (ORACLE, AGENT),
}


def measure(quick: bool) -> Study:
    """All scenarios; `quick`: two of them, shortened, with two seeds."""
    scenarios = [load_scenario(name) for name in SCENARIOS]
    if quick:
        scenarios = [shortened(one) for one in scenarios[:2]]
    contenders = {TUNED: PolicySection(name="static"), AGENT: PolicySection(name=AGENT), ORACLE: None}
    contest = compete(scenarios, contenders, seeds=2 if quick else SEEDS, seed=0)
    ratios = {name: ratios_of(contest, *pair) for name, pair in RATIOS.items()}
    table = [
        {"scenario": scenario.name} | {name: in_words(found[place]) for name, found in ratios.items()}
        for place, scenario in enumerate(scenarios)
    ]
    names = [scenario.name for scenario in scenarios]
    title = "Simulated time to the target: interquartile mean over paired seeds, 95 % interval"
    shown = dict(list(ratios.items())[:2])
    label = "time over that of the best fixed size (left is better)"
    return Study(list(contest.rows()), table, lambda figure: dots(figure, names, shown, label, title))


def ratios_of(contest: Contest, contender: str, reference: str) -> list[Estimate]:
    """Time over time, of every scenario."""
    rng = np.random.default_rng(0)
    ratios = [contest.counted_s(contender, one) / contest.counted_s(reference, one) for one in contest.scenarios]
    return [estimate(interquartile_mean, one[None], rng=rng) for one in ratios]


def in_words(one: Estimate) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


if __name__ == "__main__":
    run_study("clusters.ceiling", __doc__, measure)
