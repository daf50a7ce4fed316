"""What effects of real machines cost policies whose model of the cluster is a straight line (simulated).

    python -m benchmarks.studies.clusters.clock [--limit-s SECONDS]

Policies assume that computing takes fixed + per sample * b, the same in the next window as in this one, until they find
a period or tiles (dynamix_ps/policy/model). The scenarios with effects (dynamix_ps/sim/cluster/effects) break
that: steps of tiles, cliffs, hosts that workers share, heat, work that comes back. Every one of them also runs as the
same cluster without effects. Contenders:

    tuned-static   the best size for all workers, tuned on the reported seeds (benchmarks/studies/clusters/policies.py)
    pid            dynamic batching as published
    goodput        Pollux's batch size, split for equal finish
    model-alone    the advice of the model behind ppo, nothing learned
    ppo            the policy that ships, with its safety net
    oracle         knows costs, noise scale and the coming window (dynamix_ps/sim/contest/oracle.py)

The figure is the time to the target over that of the oracle with the same seed: how much could still be won. `cost of
the effects` is that figure over the one without the effects, paired by seed: what the effects take from the policy
beyond what they take from the oracle. A policy that has learned them could win it. Both are interquartile means with a
bootstrap interval of 95 % over seeds. A run that never reaches the target counts as in policies.py.

Every run is a row of clock.csv, written as soon as its cell ends. A later call runs what is missing or belongs to a
scenario that has changed since, and renews the page. Delete the file after a change of policies or of the simulator.
`--quick` runs two seeds over twenty windows, to show that the study works, and keeps its rows in clock-quick.csv.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.report.page import markdown
from benchmarks.studies.kept_rows import Row, contest_of
from benchmarks.studies.study import Report, run_kept_study
from benchmarks.studies.trainings import shortened
from benchmarks.suite.contenders import NO_SAFETY_NET
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.contest.comparison import Array, Estimate, estimate, interquartile_mean
from dynamix_ps.sim.contest.contest import TUNED, Contest, compete
from dynamix_ps.sim.contest.evaluate import SEEDS
from dynamix_ps.sim.contest.pictures import dots
from dynamix_ps.sim.scenario.effects import effects_of, without_effects
from dynamix_ps.sim.scenario.load import Scenario, dump_scenario, load_scenario, shipped

ORACLE = "oracle"
POLICIES: dict[str, PolicySection | None] = {
    TUNED: PolicySection(name="static"),
    "pid": PolicySection(name="pid"),
    "goodput": PolicySection(name="goodput"),
    "ppo": PolicySection(name="ppo"),
    ORACLE: None,
    "model-alone": PolicySection(name="model", safety=NO_SAFETY_NET),
}
CONTENDERS = (TUNED, "pid", "goodput", "model-alone", "ppo")  # of the tables; the oracle is the reference
SEED = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """A scenario with effects, and the same cluster without."""

    scenario: Scenario
    without: Scenario


@dataclass(frozen=True, slots=True)
class _Cell:
    scenario: Scenario
    name: str
    policy: PolicySection | None
    seeds: int

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, {self.name}"

    @property
    def key(self) -> str:
        """What a row must come from to count for this cell."""
        text = f"{dump_scenario(self.scenario)}{self.name}{self.seeds}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def pairs_of(scenarios: Sequence[Scenario]) -> list[Pair]:
    """Each with its cluster without effects; equal clusters run once, under the name of the first."""
    found: list[Pair] = []
    for scenario in scenarios:
        plain = without_effects(scenario)
        alike = {"about": "", "name": f"{scenario.name}-without", "workers": plain.each_worker}
        plain = plain.model_copy(update=alike)
        like = [one.without for one in found if one.without == plain.model_copy(update={"name": one.without.name})]
        found.append(Pair(scenario, like[0] if like else plain))
    return found


def cells_of(quick: bool) -> list[_Cell]:
    """Every policy on every cluster; `quick`: shortened, with two seeds."""
    scenarios = _with_effects()
    pairs = pairs_of([shortened(one) for one in scenarios] if quick else scenarios)
    clusters = {one.name: one for pair in pairs for one in (pair.scenario, pair.without)}
    seeds = 2 if quick else SEEDS
    return [_Cell(one, name, policy, seeds) for one in clusters.values() for name, policy in POLICIES.items()]


def _with_effects() -> list[Scenario]:
    return [one for one in map(load_scenario, shipped()) if effects_of(one)]


def _run(cell: _Cell) -> list[Row]:
    contest = compete([cell.scenario], {cell.name: cell.policy}, seeds=cell.seeds, seed=SEED, processes=1)
    size = contest.tuned_sizes.get(cell.scenario.name, "")
    return [{**row, "size": size} for row in contest.rows()]


@dataclass(frozen=True, slots=True)
class Finding:
    """One contender on one scenario."""

    over_oracle: Estimate
    cost: Estimate  # over_oracle over that without the effects
    missed: int


def findings(pairs: Sequence[Pair], rows: Sequence[Row]) -> dict[str, dict[str, Finding]]:
    """By scenario and contender."""
    rng = np.random.default_rng(0)
    found: dict[str, dict[str, Finding]] = {}
    for pair in pairs:
        here, plain = (contest_of(rows, one.name) for one in (pair.scenario, pair.without))
        for name in CONTENDERS:
            ratio, ratio_without = _over_oracle(here, name), _over_oracle(plain, name)
            found.setdefault(pair.scenario.name, {})[name] = Finding(
                estimate(interquartile_mean, ratio, rng=rng),
                estimate(interquartile_mean, ratio / ratio_without, rng=rng),
                int((~here.outcomes[name, pair.scenario.name].reached).sum()),
            )
    return found


def _over_oracle(contest: Contest, policy: str) -> Array:
    """(1, seeds)."""
    (scenario,) = contest.scenarios
    return (contest.counted_s(policy, scenario) / contest.counted_s(ORACLE, scenario))[None]


def tables(pairs: Sequence[Pair], rows: Sequence[Row], found: Mapping[str, Mapping[str, Finding]]) -> tuple[str, str]:
    """Time over the oracle's, and cost of the effects, in Markdown."""
    over, cost = [], []
    for pair in pairs:
        name, of_policies = pair.scenario.name, found[pair.scenario.name]
        oracle = contest_of(rows, name).outcomes[ORACLE, name]
        head = {"scenario": name, "effects": ", ".join(effects_of(pair.scenario))}
        seconds = f"{float(interquartile_mean(oracle.time_s[None])):,.0f}"
        window_s = f"{float((oracle.time_s / oracle.windows).mean()):.1f}"
        over.append(
            head
            | {"oracle, s": seconds, "s per window": window_s}
            | {policy: _in_words(one.over_oracle, one.missed) for policy, one in of_policies.items()}
        )
        cost.append(head | {policy: _in_words(one.cost) for policy, one in of_policies.items()})
    return markdown(over), markdown(cost)


def _in_words(one: Estimate, missed: int = 0) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" + f", {missed} missed" * bool(missed)


def report(rows: Sequence[Row]) -> Report:
    """What all rows say."""
    pairs = pairs_of(_with_effects())
    found = findings(pairs, rows)
    over, cost = tables(pairs, rows, found)
    seeds = len({str(row["seed"]) for row in rows})
    told = (
        f"{seeds} seeds. Time to target over that of the oracle:\n\n{over}\n\n"
        f"Cost of the effects, as a factor on that:\n\n{cost}"
    )
    columns = {name: [found[pair.scenario.name][name].over_oracle for pair in pairs] for name in CONTENDERS}
    title = "Simulated time to target over that of the oracle: interquartile mean over seeds, 95 % interval"
    names = [pair.scenario.name for pair in pairs]
    figures = {
        scenario: {policy: dataclasses.asdict(one) for policy, one in of_policies.items()}
        for scenario, of_policies in found.items()
    }
    return Report(told, lambda figure: dots(figure, names, columns, "time over the oracle's", title), figures)


def main(arguments: Sequence[str] | None = None) -> None:
    run_kept_study("clusters.clock", __doc__, cells_of, _run, report, arguments)


if __name__ == "__main__":
    main()
