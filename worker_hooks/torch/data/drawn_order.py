"""The order of a torch DataLoader whose samples only its sampler knows."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from worker_hooks.loading.drawn_order import DrawnOrder


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What names the samples one by one; for a batch sampler of the script's own class, that one."""
    cutter = loader.batch_sampler
    return cutter.sampler if type(cutter) is BatchSampler else cutter


class TorchDrawnOrder(DrawnOrder):
    """Draws from the torch generators of loader and sampler as a plain loop over the loader does."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        sampler = sampler_of(loader)
        users = (loader, loader.sampler, loader.batch_sampler, sampler)
        found = {id(one): one for one in (getattr(user, "generator", None) for user in users)}.values()
        self._generators = [(one, one.get_state()) for one in found if isinstance(one, torch.Generator)]
        self._loader = loader
        super().__init__(sampler, sampler is loader.batch_sampler, len(loader.dataset), seed)  # type: ignore[arg-type]

    def rewind(self) -> None:
        """The generators of loader and sampler too."""
        super().rewind()
        for generator, state in self._generators:
            generator.set_state(state)

    def _begin_pass(self) -> None:
        """For each pass a DataLoader takes the seed of its worker processes first, from the generator of the order."""
        if self._loader.generator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
