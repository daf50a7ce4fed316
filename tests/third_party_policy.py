"""A policy of another project: a module outside our packages."""

from __future__ import annotations

from pathlib import Path

SOURCE = '''
from dynamix_ps.policy.base import Decision, Policy, View


class Grow(Policy):
    """Adds `step` samples to every worker in every clean window."""

    name = "grow"

    def __init__(self, n_workers, step=8):
        if step == 0:
            raise ValueError("step must not be 0")
        self.n_workers, self.step = n_workers, step

    def decide(self, view: View) -> Decision:
        sizes = view.plan.batch_sizes
        return Decision(tuple(size + self.step for size in sizes) if view.clean else sizes, note="grown")


class Resumed(Policy):
    name = "resumed"

    def __init__(self, rng, resume, config):
        self.rng, self.file, self.config = rng, resume, config

    def decide(self, view):
        return [1, 2]


class Nameless(Policy):
    def decide(self, view):
        ...


class Undecided(Policy):
    name = "undecided"


class Loose:
    name = "loose"

    def __init__(self):
        open("ran", "w").close()


class Handler(Loose):
    ...


NUMBER = 3
'''


def write_module(folder: Path, name: str = "grow_policy") -> str:
    """Write the module; returns what names its class in a cluster file."""
    (folder / f"{name}.py").write_text(SOURCE)
    return f"{name}:Grow"
