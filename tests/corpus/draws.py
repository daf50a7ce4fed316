"""What depends on who computes a sample, and must not: random numbers, and the statistics of batch norm.

Two workers draw other random numbers than one process does, and each normalises its own part of the batch. Both are as
they should be, and both would hide whether the rest is equal. So the random numbers of a row are a function of its
sample here, wherever it is computed, and in the one process batch norm goes over the parts of the workers one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional


class DrawnBySample:
    """Takes the place of torch's functions for tensors that have a row for each sample of the batch at hand."""

    def __init__(self) -> None:
        self._parts: Sequence[Sequence[int]] = ()
        self._batches = self._draws = 0

    def begin(self, parts: Sequence[Sequence[int]]) -> None:
        """The script gets a batch of these samples: of one worker, or of several one after the other."""
        self._parts = parts
        self._batches, self._draws = self._batches + 1, 0

    def end(self) -> None:
        """The loop over batches is over."""
        self._parts = ()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        changes = {
            (torch, "randn"): self._sized(torch.randn),
            (torch, "rand"): self._sized(torch.rand),
            (torch, "randn_like"): self._alike(torch.randn_like, torch.randn),
            (torch, "rand_like"): self._alike(torch.rand_like, torch.rand),
            (torch, "randint"): self._randint(torch.randint),
            (functional, "dropout"): self._dropout(functional.dropout, torch.rand),
            (functional, "batch_norm"): self._batch_norm(functional.batch_norm),
        }
        patches = [patch.object(module, name, function) for (module, name), function in changes.items()]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()

    def _rows(self, count: int) -> list[int]:
        """The samples of the batch at hand if a tensor with so many rows is of them."""
        rows = [row for part in self._parts for row in part]
        return rows if len(rows) == count else []

    def _drawn(self, rows: list[int], draw: Callable[[torch.Generator], torch.Tensor]) -> torch.Tensor:
        self._draws += 1
        seeds = [(self._batches * 1009 + self._draws) * 1_000_003 + row for row in rows]
        return torch.stack([draw(torch.Generator().manual_seed(seed)) for seed in seeds])

    def _sized(self, plain: Any) -> Any:
        def drawn(*size: Any, **options: Any) -> torch.Tensor:
            shape = size if isinstance(size[0], int) else tuple(size[0])
            rows = [] if "generator" in options or not shape else self._rows(shape[0])
            if not rows:
                return plain(*size, **options)
            return self._drawn(rows, lambda generator: plain(shape[1:], generator=generator, **options))

        return drawn

    def _alike(self, plain: Any, sized: Any) -> Any:
        def drawn(like: torch.Tensor) -> torch.Tensor:
            rows = self._rows(len(like))
            if not rows:
                return plain(like)
            return self._drawn(rows, lambda generator: sized(like.shape[1:], generator=generator, dtype=like.dtype))

        return drawn

    def _randint(self, plain: Any) -> Any:
        def drawn(*numbers: Any, **options: Any) -> torch.Tensor:
            *limits, shape = numbers
            rows = [] if "generator" in options or not shape else self._rows(shape[0])
            if not rows:
                return plain(*numbers, **options)
            return self._drawn(rows, lambda generator: plain(*limits, shape[1:], generator=generator, **options))

        return drawn

    def _dropout(self, plain: Any, uniform: Any) -> Any:
        def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
            rows = self._rows(len(x)) if training else []
            if not rows:
                return plain(x, p, training, inplace)
            chance = self._drawn(rows, lambda generator: uniform(x.shape[1:], generator=generator))
            return x * (chance >= p) / (1 - p)

        return dropped

    def _batch_norm(self, plain: Any) -> Any:
        def normalised(
            x: torch.Tensor,
            mean: Any,
            variance: Any,
            weight: Any,
            bias: Any,
            training: bool,
            momentum: float,
            eps: float,
        ) -> torch.Tensor:
            sizes = [len(part) for part in self._parts]
            if not training or len(sizes) < 2 or len(x) % sum(sizes):
                return plain(x, mean, variance, weight, bias, training, momentum, eps)
            of_parts = torch.arange(len(x)).view(-1, sum(sizes)).split(sizes, dim=1)  # several views of a sample
            chosen = [rows.flatten() for rows in of_parts if rows.numel()]
            found, statistics = [], []
            for rows in chosen:
                own = mean.clone(), variance.clone()
                found.append(plain(x[rows], *own, weight, bias, True, momentum, eps))
                statistics.append([len(rows) / len(x) * one for one in own])
            for buffer, shares in zip((mean, variance), zip(*statistics, strict=True), strict=True):
                buffer.copy_(sum(shares))
            return torch.cat(found)[torch.cat(chosen).argsort()]

        return normalised
