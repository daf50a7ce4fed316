"""The schedulers of a script's optimizers, which do not know them."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from functools import partial

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from worker_hooks.planning.schedules import missed_end


class Schedulers:
    """Looked up once, where the first loop over batches ends: a script's function may be over when training is."""

    _found: list[LRScheduler] | None = None

    def look_up(self, optimizers: Collection[torch.optim.Optimizer]) -> None:
        """Find those that exist. Goes through all objects of the process.

        Only what refers to an optimizer is looked at: a tuple that another thread is making breaks if it gets one more
        reference, as `gc.get_objects()` would give it.
        """
        if self._found is not None:
            return
        holders = gc.get_referrers(*optimizers)
        dicts = [one for one in holders if type(one) is dict]  # of attributes
        found = {id(one): one for one in (*holders, *gc.get_referrers(*dicts)) if issubclass(type(one), LRScheduler)}
        self._found = [one for one in found.values() if any(one.optimizer is mine for mine in optimizers)]

    def missed_ends(self, passes: int) -> Iterator[str]:
        """A sentence for each that is far from its end, now that training has come to its own after `passes`."""
        for one in self._found or ():
            if planned := _planned(one):
                rate, repeats = float(one.optimizer.param_groups[0]["lr"]), isinstance(one, CosineAnnealingLR)
                if told := missed_end(type(one).__name__, one.last_epoch, planned, rate, passes, repeats):
                    yield told


def _planned(scheduler: LRScheduler) -> int:
    """Its steps from begin to end; 0: it has no end that shows."""
    known = [getattr(scheduler, name, 0) for name in ("total_steps", "T_max", "total_iters")]
    for function in getattr(scheduler, "lr_lambdas", ()):
        if isinstance(function, partial):  # of transformers
            known.append(function.keywords.get("num_training_steps", 0))
    return max((one for one in known if isinstance(one, int)), default=0)
