"""How far a decision travels through the code: modules and calls from a closed window to a published plan.

    python -m benchmarks.parts.sources.decision_path [--list]

A real arbitrator in this process, without network, decides for 32 workers with the shipped policy `ppo` and its safety
net. The policy does not learn. After WARM_UP windows, `sys.setprofile` follows the next DECISIONS that make a plan:
from `Decisions.decide`, which gets the closed window, to the end of `PlanPublication.publish`, which gets the new plan.
It also follows the journal's thread. Both figures count functions of `dynamix_ps`. Each is given as the median and the
maximum over the decisions; a decision that the safety net replaces takes the longest path.

    modules   different modules whose functions run
    calls     calls of a function by another module: the caller is the nearest function of ours on the stack

Generator expressions and the methods that `dataclass` generates do not count as functions. A coroutine that goes on
after an `await` is not called again.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.made_up_cluster import cluster, load
from dynamix_ps.arbitrator.decision import Decisions
from dynamix_ps.arbitrator.journal import replay
from dynamix_ps.arbitrator.publication import PlanPublication
from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.messages import Plan, Registration
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.run_record.json_lines import Journal

WORKERS = 32
WARM_UP, DECISIONS = 20, 20
BEGIN, END = Decisions.decide.__code__, PlanPublication.publish.__code__


class DecisionPath:
    """The functions of `dynamix_ps` that run in one decision, and their calls."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls: Counter[tuple[str, str]] = Counter()  # (calling module, called function)
        self.published = False  # the decision has made a new plan and is complete
        self._begun = False
        self._coroutines: set[FrameType] = set()  # that were called

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if event == "call" and not self.published and frame not in self._coroutines:
            if frame.f_code.co_flags & inspect.CO_COROUTINE:
                self._coroutines.add(frame)
            self._begun = self._begun or frame.f_code is BEGIN
            if self._begun:
                self._called(frame)
        elif event == "return" and frame.f_code is END:
            self.published = True

    def _called(self, frame: FrameType) -> None:
        module, caller = _module(frame), frame.f_back
        if module is None:
            return
        self.modules.add(module)
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        calling = str(_module(caller)) if caller is not None else "(thread)"
        if calling != module:
            self.calls[calling, f"{module}.{frame.f_code.co_name}"] += 1


def _module(frame: FrameType) -> str | None:
    """The module of a function of `dynamix_ps`, else None."""
    name = str(frame.f_globals.get("__name__"))
    ours = name.startswith("dynamix_ps.") and frame.f_code.co_filename.endswith(".py")
    return name if ours and frame.f_code.co_name != "<genexpr>" else None


async def follow(workers: int = WORKERS, warm_up: int = WARM_UP, decisions: int = DECISIONS) -> list[DecisionPath]:
    """The paths of the first decisions after `warm_up` windows that make a new plan."""
    found: list[DecisionPath] = []
    config = cluster("ppo", workers)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "journal.jsonl"
        journal = Journal(file)
        policy = make_policy(config, workers, np.random.default_rng(0))
        arbitrator = Arbitrator(config, policy, journal, replay(file), Path(folder) / "policy.npz")
        plan = Plan(0, config.initial_sizes())
        for rank in range(workers):
            arbitrator.register(Registration(rank, "life", "host", rank, plan))
        made = load(workers)
        next(made)
        for window in itertools.count():
            reports, records = made.send(plan)
            for report in reports:
                arbitrator.observe(report)
            for record in records:
                arbitrator.report("life", record)
            path = DecisionPath()
            with _profiled(path.profile):
                await arbitrator.step()
            if path.published and window >= warm_up:
                found.append(path)
            if len(found) == decisions:
                break
            plan = arbitrator.register(Registration(0, "life", "host", 0, plan))
        journal.close()
    return found


@contextmanager
def _profiled(profile: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Profile this thread, and those that start meanwhile."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list every call between modules on the longest path")
    args = parser.parse_args()
    paths = sorted(asyncio.run(follow()), key=lambda path: path.calls.total())
    if args.list:
        for (calling, called), times in sorted(paths[-1].calls.items()):
            print(f"{times:4d}  {calling} -> {called}")
    modules, calls = [len(path.modules) for path in paths], [path.calls.total() for path in paths]
    print(f"modules: {median(modules):g}, at most {max(modules)}")
    print(f"calls between them: {median(calls):g}, at most {max(calls)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
