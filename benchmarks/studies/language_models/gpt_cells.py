"""What the study of language models runs and asks: one training, its clusters, contenders, questions with their bars.

A byte-level GPT learns sources of Python's standard library with AdamW, a warm-up and a cosine. Sizes are in tokens, so
a worker with 512 of them takes eight sequences of 64 bytes. The action space of DYNAMIX is read in two ways: its bounds
and steps count tokens, or sequences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from benchmarks.studies.agent.cells import BEST_STATIC, Bar, Question
from benchmarks.studies.agent.cells import WORKLOADS as SHORTENED
from benchmarks.studies.agent.clusters import cluster_for
from benchmarks.studies.rehearsed_cells import Cell, Name, Workplace, cell_of
from benchmarks.studies.trainings import untrained
from benchmarks.suite.contenders import CONTENDERS, Contender
from benchmarks.suite.workloads import Workload
from benchmarks.workloads.text import CONTEXT
from dynamix_ps.policy.learned.paper import PAPER_BOUNDS
from dynamix_ps.rehearsal.outcome import EvaluationTarget
from dynamix_ps.sim.scenario.load import Scenario, load_scenario

NAME = "text-gpt"
WORKERS = 8
FIRST_SIZE = 512  # tokens of every worker, for whose sum the learning rate is tuned
MOST = 1 << 17  # tokens of all workers
CLUSTERS = ("h-level-8", "h-level-10")  # speeds 8 and 10 times apart
SEEDS = 10  # of each cluster
SWEEP_SEEDS = 2  # of sizes far from the best one
BETWEEN_CLUSTERS = 100  # seeds; no two clusters share one
NOISE_SCALE = 50 * CONTEXT  # tokens, median over a training with about the first sizes

# Test losses, nats per byte: those of a training with the first sizes and a seed of its own after about 40, 60 and 80
# percent of its tokens. Of two rates, 0.004 and 0.008, the second was faster to them, and as good at the end.
TARGETS = tuple(EvaluationTarget("loss", value, higher_is_better=False) for value in (2.35, 2.2, 2.1))

TOKENS = SHORTENED[NAME].model_copy(
    update={
        "unit": "tokens",
        "lr": {"adamw": 0.008},
        "schedule": "cosine",
        "batch": FIRST_SIZE,
        "min": CONTEXT,
        "max": MOST // WORKERS,
        "ema_decay": None,
        "thresholds": tuple(one.value for one in TARGETS),
    }
)

AGENT, MODEL, GOODPUT = "ppo", "model", "goodput"
PAPER_TOKENS, PAPER_SEQUENCES = "paper, tokens", "paper, sequences"
STATICS = {f"static-{size}": size for size in (128, 256, 512, 1024)}  # tokens of a worker; the best counts as tuned
SWEEP = {f"static-{size}": size for size in (2048, 4096, 8192, 16384)}
CHOOSING = (AGENT, MODEL, GOODPUT, PAPER_TOKENS, PAPER_SEQUENCES)

QUESTIONS = (
    Question("ours", AGENT, BEST_STATIC, CLUSTERS, SEEDS, bar=Bar(0.7)),
    Question("ours", AGENT, GOODPUT, CLUSTERS, SEEDS, bar=Bar(1.0)),
    Question("ours", AGENT, MODEL, CLUSTERS, SEEDS),
    Question("the paper's space", PAPER_TOKENS, BEST_STATIC, CLUSTERS, SEEDS),
    Question("the paper's space", PAPER_SEQUENCES, BEST_STATIC, CLUSTERS, SEEDS),
    Question("the paper's space", AGENT, PAPER_TOKENS, CLUSTERS, SEEDS),
    Question("the paper's space", AGENT, PAPER_SEQUENCES, CLUSTERS, SEEDS),
)


def cells(quick: bool, folder: Path) -> list[Cell]:
    """All cells, seed by seed, so that a study that is cut off has some pairs of every question.

    Args:
        quick: the first seed of the first cluster alone, without the sweep.
        folder: gets the file of the policy that has learned nothing.
    """
    known = contenders(folder)
    return [
        _cell(Name(NAME, cluster, one, BETWEEN_CLUSTERS * place + number), known[one])
        for number in range(1 if quick else SEEDS)
        for place, cluster in enumerate(CLUSTERS[:1] if quick else CLUSTERS)
        for one in known
        if one not in SWEEP or (number < SWEEP_SEEDS and not quick)
    ]


def contenders(folder: Path) -> Mapping[str, Contender]:
    """All of them by name."""
    agent, static, paper = CONTENDERS["ppo"], CONTENDERS["static"], CONTENDERS["ppo-paper"]
    fixed = {name: dataclasses.replace(static, batch=size) for name, size in (STATICS | SWEEP).items()}
    first, tuned_for = PAPER_BOUNDS[0] * CONTEXT, FIRST_SIZE  # tokens of a worker
    return {
        AGENT: agent,
        MODEL: dataclasses.replace(agent, policy=untrained(folder / "untrained.npz")),
        GOODPUT: CONTENDERS["goodput"],
        PAPER_TOKENS: paper,
        PAPER_SEQUENCES: dataclasses.replace(paper, lr_factor=math.sqrt(first / tuned_for)),  # as `lr_rule` would
        **fixed,
    }


def _cell(name: Name, chosen: Contender) -> Cell:
    workload = workload_of(name.contender)
    return cell_of(name, Workplace(workload, _cluster(name.scenario, workload), (workload.batch,) * WORKERS), chosen)


def workload_of(contender: str) -> Workload:
    """What it trains: the same for all, but for the unit and the bounds of its sizes."""
    low, high = PAPER_BOUNDS
    if contender == PAPER_TOKENS:  # fewer tokens than CONTEXT hold no sequence
        return TOKENS.model_copy(update={"min": max(low, CONTEXT), "max": high})
    if contender == PAPER_SEQUENCES:  # the smallest of its sizes is larger than FIRST_SIZE
        return TOKENS.model_copy(update={"unit": "samples", "batch": low, "min": low, "max": high})
    return TOKENS


@cache
def _in_tokens(cluster: str) -> Scenario:
    return cluster_for(load_scenario(cluster), NOISE_SCALE, TOKENS.window)


def _cluster(name: str, workload: Workload) -> Scenario:
    """The same machines, whatever sizes count."""
    if workload.unit == "tokens":
        return _in_tokens(name)
    return cluster_for(load_scenario(name), NOISE_SCALE / CONTEXT, workload.window)
