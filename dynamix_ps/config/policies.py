"""The policies that a cluster file knows by name. Any other is named by where it is: `package.module:Class`.

This table imports no policy: `policy/registry.py` does when a policy is made, so that workers and servers need none.
To add one that ships: its file in `policy/baselines/`, and a row here.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One policy.

    Attributes:
        target: what makes it, as `package.module:callable`; `policy/base.py` tells how it is called.
        description: one sentence for people who choose.
        keys: the keys under `policy:` that only this policy takes.
        central: whether an arbitrator decides for all workers; otherwise each worker chooses its own size, and there is
            no arbitrator.
        measures: whether it decides by measured speeds; its proposals then need evidence (policy/evidence/).
        links: whether workers with slow links get less.
    """

    target: str
    description: str
    keys: tuple[str, ...] = ()
    central: bool = True
    measures: bool = False
    links: bool = False


SAFETY = "safety"  # the key of policies with a safety net (policy/safety_net.py)
REMEMBER = "remember"  # the key of policies that decide by measured speeds (arbitrator/remembered.py)
_BASELINES = "dynamix_ps.policy.baselines"

POLICIES = {
    "static": PolicyEntry(f"{_BASELINES}.static:static_policy", "Keeps fixed sizes.", ("sizes",)),
    "proportional": PolicyEntry(
        f"{_BASELINES}.proportional:ProportionalPolicy",
        "Keeps the global batch and shares it in proportion to measured throughput.",
        (REMEMBER,),
        measures=True,
    ),
    "pid": PolicyEntry(
        f"{_BASELINES}.pid:pid_policy",
        "The dynamic-batching controller: equalises compute times step by step.",
        ("pid", REMEMBER),
        measures=True,
    ),
    "lbbsp": PolicyEntry(
        f"{_BASELINES}.lbbsp:lbbsp_policy",
        "LB-BSP: shares by forecast speed, or moves samples from the slowest worker to the fastest.",
        ("lbbsp", REMEMBER),
        measures=True,
    ),
    "lbb": PolicyEntry(
        f"{_BASELINES}.lbb:LbbPolicy",
        "LBB: solves for equal times from a profile that it learns on line.",
        (REMEMBER,),
        measures=True,
    ),
    "goodput": PolicyEntry(
        f"{_BASELINES}.goodput:GoodputPolicy",
        "The global batch of largest goodput by the measured noise scale, split so that all finish together.",
        (REMEMBER,),
        measures=True,
    ),
    "random": PolicyEntry(
        f"{_BASELINES}.random_sizes:RandomSizesPolicy", "Draws every size anew in every window, as a control."
    ),
    "model": PolicyEntry(
        "dynamix_ps.policy.model.policy:ModelPolicy",
        "The plan that follows from a model of the cluster, with a safety net. Nothing in it is learned.",
        (SAFETY, REMEMBER),
        measures=True,
        links=True,
    ),
    "ppo": PolicyEntry(
        "dynamix_ps.policy.learned.policy:ppo_policy",
        "The learned policy: corrects the plan of `model`, with a safety net.",
        ("ppo", SAFETY, REMEMBER),
        measures=True,
        links=True,
    ),
    "stigmergy": PolicyEntry(
        "dynamix_ps.policy.stigmergy.policy:stigmergy_policy",
        "Without an arbitrator: every worker chooses its own size, from traces that all lay in the gradient sum.",
        ("stigmergy",),
        central=False,
    ),
}

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def entry_of(name: str) -> PolicyEntry:
    """The row of a policy, or one for `package.module:Class`. Raises KeyError for a name that is neither."""
    return PolicyEntry(name, "", ("options",)) if is_target(name) else POLICIES[name]


def is_target(name: str) -> bool:
    """Whether the name has the form `package.module:Class`."""
    return _TARGET.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The same name. Raises ValueError if it is neither in the table nor of the form `package.module:Class`."""
    if name in POLICIES or is_target(name):
        return name
    close = difflib.get_close_matches(name[:40].lower(), POLICIES, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    raise ValueError(f"must be one of {', '.join(POLICIES)}, or package.module:Class{hint}")
