"""What the study of the agent runs and asks: workloads, clusters, contenders, questions with their bars."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from benchmarks.studies.ablated import PARTS
from benchmarks.studies.agent.clusters import cluster_for
from benchmarks.studies.rehearsed_cells import Cell, Name, Row, Workplace, cell_of
from benchmarks.studies.trainings import untrained
from benchmarks.suite.contenders import BY_HAND, CONTENDERS, Contender
from benchmarks.suite.workloads import Workload, load_workloads
from dynamix_ps.config.schema import PolicySection
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

WORKLOADS: Mapping[str, Workload] = load_workloads(Path(__file__).with_name("workloads.yaml"))
QUICK_WORKLOADS = ("fashion-cnn", "text-gpt")
WORKERS = 8
QUICK_SEEDS = 8
BETWEEN_CLUSTERS = 100  # seeds; no two clusters share one, so their luck is not the same

# Gradient noise scale in samples, median over a training with about the first sizes.
NOISE_SCALES = {
    "fashion-cnn": 240,
    "cifar-resnet": 110,
    "cifar-vgg11": 130,
    "cifar-transformer": 200,
    "text-gpt": 50,
}
# Seconds of a run while another one runs on the other core; what the runs of the table took counts instead.
COSTS_S = {"fashion-cnn": 24.0, "cifar-resnet": 20.0, "cifar-vgg11": 17.0, "cifar-transformer": 28.0, "text-gpt": 20.0}

QUIET = ("homogeneous", "h-level-4", "h-level-8")
UNEVEN = ("cliffs", "shared-hosts", "slow-link", "recurring")
STEEP = ("h-level-8", "h-level-10")
STEADY = ("h-level-4", *STEEP)  # speeds differ and stay as they are
SCENARIOS = tuple(dict.fromkeys((*QUIET, *UNEVEN, *STEEP)))
USUAL = ("h-level-4",)  # for what is asked on one cluster alone

AGENT, MODEL = "ppo", "model"
STATICS = {"static-half": 0.5, "static": 1.0, "static-double": 2.0}  # times the first sizes; sizes.py adds more
BEST_STATIC = "best static"  # of the fixed sizes with the same seeds, for each workload and cluster


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio has to be: all of its interval at most `limit`.

    Attributes:
        clearly: its mean at most `limit` and all of its interval below 1.
    """

    limit: float
    clearly: bool = False

    def __str__(self) -> str:
        return f"mean ≤ {self.limit:g}, interval < 1" if self.clearly else f"interval ≤ {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Question:
    """One contender against another on some clusters.

    Attributes:
        seeds: of each workload on each cluster. Few do where both learn the same, or where there are many clusters.
        quick: the clusters of a quick call, which takes QUICK_SEEDS.
        bar: none where the answer is to be seen beside the others.
    """

    part: str
    contender: str
    reference: str
    scenarios: tuple[str, ...]
    seeds: int
    quick: tuple[str, ...] = ()
    bar: Bar | None = None

    @property
    def contenders(self) -> tuple[str, ...]:
        """Whose runs it needs."""
        return (self.contender, *(STATICS if self.reference == BEST_STATIC else (self.reference,)))


def _questions() -> Iterator[Question]:
    part = "tuned, quiet clusters"
    yield Question(part, AGENT, MODEL, QUIET, 2, ("h-level-8",), Bar(1.03))
    part = "tuned, cliffs, shared hosts, a thin link or recurring work"
    yield Question(part, AGENT, MODEL, UNEVEN, 3, ("recurring",), Bar(0.95, clearly=True))
    yield Question(part, "goodput", MODEL, UNEVEN, 2)
    part = "against the best fixed size"
    yield Question(part, AGENT, BEST_STATIC, STEEP, 3, ("h-level-8",), Bar(0.54))
    yield Question(part, AGENT, BEST_STATIC, ("homogeneous",), 5, (), Bar(1.03))
    part = "against sizes set once by hand"
    yield Question(part, AGENT, BY_HAND, STEADY, 3)
    part = "what a decision is worth"
    for switched_off in ("batch", "shares"):
        yield Question(part, f"{AGENT} without {switched_off}", AGENT, USUAL, 5)
    yield Question(part, f"{AGENT} without anticipation", AGENT, ("recurring",), 5)


QUESTIONS = tuple(_questions())


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender. `size`: the fixed size, relative to the first sizes."""

    contender: Contender
    size: float | None = None


_WITHOUT_ANTICIPATION = PolicySection(name="benchmarks.studies.ablated:WithoutAnticipation")


def entries(folder: Path) -> dict[str, Entry]:
    """All contenders by name. `folder` gets the file of the policy that has learned nothing."""
    agent, static = CONTENDERS["ppo"], Entry(CONTENDERS["static"])
    found = {
        AGENT: Entry(agent),
        MODEL: Entry(dataclasses.replace(agent, policy=untrained(folder / "untrained.npz"))),
        "goodput": Entry(CONTENDERS["goodput"]),
        BY_HAND: Entry(CONTENDERS[BY_HAND]),
        f"{AGENT} without anticipation": Entry(dataclasses.replace(agent, policy=_WITHOUT_ANTICIPATION)),
    }
    found |= {name: dataclasses.replace(static, size=factor) for name, factor in STATICS.items()}
    for switched_off in PARTS:
        options = {"policy": {"name": "ppo"}, "without": switched_off}
        ablated = PolicySection(name="benchmarks.studies.ablated:AblatedPolicy", options=options)
        found[f"{AGENT} without {switched_off}"] = Entry(dataclasses.replace(agent, policy=ablated))
    return found


def cells(quick: bool, folder: Path) -> list[Cell]:
    """What the questions need, each cell once: those with a bar first, question by question and seed by seed, so that a
    study that is cut off has answered the first ones. `quick`: only what is quick, which the whole study does last."""
    known, found = entries(folder), dict[Name, Cell]()
    for is_quick in (True,) if quick else (False, True):
        for question in sorted(QUESTIONS, key=lambda one: one.bar is None):
            for number in range(QUICK_SEEDS if is_quick else question.seeds):
                for scenario in question.quick if is_quick else question.scenarios:
                    seed = BETWEEN_CLUSTERS * SCENARIOS.index(scenario) + number
                    for contender in question.contenders:
                        for workload in QUICK_WORKLOADS if is_quick else WORKLOADS:
                            name = Name(workload, scenario, contender, seed)
                            if name not in found:
                                found[name] = _cell(name, known[contender])
    return list(found.values())


def fixed_size_cell(name: Name, factor: float) -> Cell:
    """A run in which every worker keeps so many times its first size."""
    return _cell(name, Entry(CONTENDERS["static"], size=factor))


def fixed_size(workload: Workload, factor: float) -> int:
    """Samples of every worker, of so many times the workload's first size."""
    return round(workload.batch * factor)


def _cell(name: Name, entry: Entry) -> Cell:
    workload, chosen = WORKLOADS[name.workload], entry.contender
    if entry.size is not None:
        chosen = dataclasses.replace(chosen, batch=max(fixed_size(workload, entry.size), 1))
    first_sizes = (workload.batch,) * WORKERS
    return cell_of(name, Workplace(workload, _cluster(name.scenario, name.workload), first_sizes), chosen)


@cache
def _cluster(scenario: str, workload: str) -> Scenario:
    return cluster_for(load_scenario(scenario), NOISE_SCALES[workload], WORKLOADS[workload].window)


def core_seconds(missing: Sequence[Name], rows: Mapping[Name, Row]) -> float:
    """What these cells take on one core: the median of the rows of their workload, or the estimate."""
    took_s: dict[str, list[float]] = {}
    for name, row in rows.items():
        took_s.setdefault(name.workload, []).append(float(row["took_s"]))
    costs_s = COSTS_S | {workload: median(found) for workload, found in took_s.items()}
    return sum(costs_s[name.workload] for name in missing)
