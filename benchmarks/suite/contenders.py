"""Who takes part: every contender's name, policy, origin, and how much it was tuned.

Names are what a grid lists and what results carry. `static` is tuned by trying: `static-64` is a cell in which every
worker keeps 64 samples, `static-64-x2` the same with twice the workload's learning rate, and the best of them in a
scenario and workload counts as `static` there. Formulas and defaults of every policy are at the head of its file in
dynamix_ps/policy/.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dynamix_ps.apportion import apportion
from dynamix_ps.config.schema import LbBsp, Pid, PolicySection, Ppo, Safety
from dynamix_ps.errors import ConfigError
from dynamix_ps.policy.learned.policy import PRETRAINED

DEFAULTS = "none: published values, ours where none are"
TRAINED = "weights: 1.5 million windows of random simulated clusters, none of these"
RULES_TUNED = "rules and constants: nineteen attempts judged on the proof grid (benchmarks/results/attempts.md)"
OURS_TUNED = f"{TRAINED}; {RULES_TUNED}"
BY_HAND = "by-hand"
DDP, DDP_BY_HAND = "ddp", "ddp-by-hand"
WIRE_AUTO = "-wire-auto"
NO_SAFETY_NET = Safety(enabled=False)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to choose batch sizes."""

    policy: PolicySection
    what: str
    paper: str
    tuning: str  # effort spent on it before its cells were run
    batch: int | None = None  # every worker's size from the first window on; None: the policy's
    by_speed: bool = False  # first sizes in proportion to the workers' speeds; their sum stays
    lr_factor: float = 1.0  # on the workload's learning rate
    wire: Literal["float32", "auto"] = "float32"
    over_ddp: bool = False  # torch's DistributedDataParallel over gloo, without our hook; sizes stay as they are

    def first_sizes(self, sizes: Sequence[int], speeds: Sequence[float], least: int, most: int) -> tuple[int, ...]:
        """What every worker begins with: `sizes`, or their sum in proportion to `speeds`, within both bounds."""
        if not self.by_speed:
            return tuple(sizes)
        return apportion(sum(sizes), speeds, [least] * len(sizes), [most] * len(sizes))


CONTENDERS = {
    "static": Contender(
        PolicySection(name="static"),
        "the same size for every worker, all the time",
        "none",
        "every size of the grid tried, the best of the scenario and workload taken afterwards",
    ),
    BY_HAND: Contender(
        PolicySection(name="static"),
        "sizes in proportion to the workers' speeds, set once by hand: `batch` of every worker in the cluster file",
        "none",
        "the true speeds at the beginning; the sum of the first sizes",
        by_speed=True,
    ),
    DDP: Contender(
        PolicySection(name="static"),
        "torch's DistributedDataParallel over gloo, the same size for every worker; none of ours",
        "torch",
        "none: the first sizes",
        over_ddp=True,
    ),
    DDP_BY_HAND: Contender(
        PolicySection(name="static"),
        "the same with sizes in proportion to the workers' speeds; each worker's loss is weighted by its share",
        "torch",
        "the true speeds at the beginning; the sum of the first sizes",
        by_speed=True,
        over_ddp=True,
    ),
    "proportional": Contender(
        PolicySection(name="proportional"),
        "shares by measured throughput, global batch kept",
        "dynamic batching, arXiv 2305.12213 (III-C)",
        DEFAULTS,
    ),
    "pid": Contender(
        PolicySection(name="pid"),
        "dynamic batching as published: b <- b mean(t) / t, 5 % dead-band, learned maximum",
        "dynamic batching, arXiv 2305.12213 (III-C)",
        DEFAULTS,
    ),
    "pid-keep": Contender(
        PolicySection(name="pid", pid=Pid(keep_global=True)),
        "the same, scaled back to the present global batch",
        "dynamic batching, arXiv 2305.12213; B kept as in OmniLearn, arXiv 2503.17469",
        DEFAULTS,
    ),
    "lbbsp-cpu": Contender(
        PolicySection(name="lbbsp", lbbsp=LbBsp(rule="cpu")),
        "shares by forecast speed; a linear forecast in place of the network",
        "LB-BSP, arXiv 1806.02508 (SoCC 2020)",
        DEFAULTS,
    ),
    "lbbsp-gpu": Contender(
        PolicySection(name="lbbsp", lbbsp=LbBsp(rule="gpu")),
        "moves samples from the straggler to the leader, in steps that shrink",
        "LB-BSP, arXiv 1806.02508 (SoCC 2020)",
        DEFAULTS,
    ),
    "lbb": Contender(
        PolicySection(name="lbb"),
        "solves for equal times where they are far apart, moves single samples where near; profile learned on line",
        "LBB, The Journal of Supercomputing, 2023",
        DEFAULTS,
    ),
    "goodput": Contender(
        PolicySection(name="goodput"),
        "global batch of largest goodput by the measured noise scale, split for equal finish; progress under the job's "
        "learning-rate rule by our model (progress.py), as under `adascale` by its own",
        "Pollux, OSDI 2021 (AdaptDL); split as in Cannikin, arXiv 2402.05302",
        DEFAULTS,
    ),
    "random": Contender(
        PolicySection(name="random"),
        "every size drawn anew in every window; a control",
        "none",
        "none",
    ),
    "ppo-paper": Contender(
        PolicySection(name="ppo", ppo=Ppo(space="paper"), safety=NO_SAFETY_NET),
        "DYNAMIX: five steps per worker, its reward, clipped PPO",
        "DYNAMIX, arXiv 2510.08522",
        TRAINED,
    ),
    "ppo-paper-simple": Contender(
        PolicySection(
            name="ppo",
            ppo=Ppo(space="paper", learner="simple", file=str(PRETRAINED / "paper-simple.npz")),
            safety=NO_SAFETY_NET,
        ),
        "the same trained without clipping and without a critic, as its text says",
        "DYNAMIX, arXiv 2510.08522 (IV-A)",
        TRAINED,
    ),
    "model": Contender(
        PolicySection(name="model"),
        "ours: the plan that follows from a model of the cluster, safety net; nothing learned",
        "none",
        RULES_TUNED,
    ),
    "ppo": Contender(
        PolicySection(name="ppo"),
        "ours: corrections to a model's global batch and to each share, safety net",
        "none",
        OURS_TUNED,
    ),
    "stigmergy": Contender(
        PolicySection(name="stigmergy"),
        "ours: no arbitrator, every worker chooses its own size from traces in the gradient sum",
        "traces: after S-MADRL",
        "none: first values of its rule",
    ),
}


def is_static(name: str) -> bool:
    """Whether every worker keeps one size, and nothing else changes."""
    return name.partition("-")[0] == "static" and not name.endswith(WIRE_AUTO)


def contender(name: str) -> Contender:
    """One of CONTENDERS, `static-N`: every worker keeps N samples, or `static-N-xF`: with F times the learning rate.

    `NAME-wire-auto` is one of these with `cluster.wire: auto`.

    Raises:
        ConfigError: there is none of this name.
    """
    if (plain := name.removesuffix(WIRE_AUTO)) != name:
        if (own := contender(plain)).over_ddp:
            raise ConfigError(f"contender {name!r}: DistributedDataParallel has no such wire; take one of ours")
        return dataclasses.replace(own, wire="auto")
    fixed = re.fullmatch(r"static-([1-9][0-9]*)(?:-x([0-9]+|[0-9]*\.[0-9]+))?", name)
    if fixed and float(fixed[2] or 1) > 0:
        return dataclasses.replace(CONTENDERS["static"], batch=int(fixed[1]), lr_factor=float(fixed[2] or 1))
    if name not in CONTENDERS:
        close = difflib.get_close_matches(name, CONTENDERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"contender {name!r}: expected static-N or one of {', '.join(CONTENDERS)}{hint}")
    return CONTENDERS[name]
