"""Throughput of the input path: a DataLoader that the hook has taken over against the same loader in plain torch.

    python -m benchmarks.parts.loader --json FILE

Every sample costs WORK_S of CPU time in Python, so the loader's processes are the bottleneck. Both ways train the same
tiny model in one process, with the same batch size, and take turns: one pass each per round, in the order plain, ours,
ours, plain. A pass counts from before its loader processes start until its last step. `ratio_to_plain` is the hook's
samples per second over those of plain torch, from the sums over all rounds; at least RATIO_LIMIT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

RATIO_LIMIT = 0.97
WORK_S = 0.005
SAMPLES, BATCH, PROCESSES = 384, 32, 2


class Busy(Dataset[tuple[torch.Tensor, int]]):
    """Samples that cost WORK_S of CPU time each."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        end_s = time.thread_time() + WORK_S
        while time.thread_time() < end_s:
            pass
        return torch.full((8,), float(number)), number % 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=8, help="two passes of each way in each round")
    args = parser.parse_args()
    figures = measure(args.rounds)
    table = Table(title="input path")
    for column in ("", "samples/s"):
        table.add_column(column, justify="right")
    for way in ("plain", "ours"):
        table.add_row(way, f"{figures[f'{way}_samples_per_s']:.1f}")
    Console().print(table)
    print(f"ratio to plain {figures['ratio_to_plain']:.3f} (at least {RATIO_LIMIT})")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(rounds: int) -> dict[str, Any]:
    """Both ways in turns; samples per second of each."""
    torch.set_num_threads(1)
    ways: dict[str, Iterator[float]] = {"plain": plain_passes(), "ours": our_passes(epochs=2 * rounds)}
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        for way in ("plain", "ours", "ours", "plain"):
            seconds[way].append(next(ways[way]))
    rates = {way: SAMPLES * len(each) / sum(each) for way, each in seconds.items()}
    return {
        "ratio_to_plain": rates["ours"] / rates["plain"],
        "plain_samples_per_s": rates["plain"],
        "ours_samples_per_s": rates["ours"],
        "plain_pass_s": seconds["plain"],
        "ours_pass_s": seconds["ours"],
        "cores": os.cpu_count(),
    }


def trained() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    model = nn.Linear(8, 2)
    loader = DataLoader(Busy(), BATCH, shuffle=True, num_workers=PROCESSES)
    return model, torch.optim.SGD(model.parameters(), lr=1e-6), loader


def plain_passes() -> Iterator[float]:
    """The seconds of each pass in plain torch."""
    model, optimizer, loader = trained()
    while True:
        yield seconds_of(loader, model, optimizer, lambda loss: loss.backward())


def our_passes(epochs: int) -> Iterator[float]:
    """The seconds of each pass with the hook."""
    model, optimizer, loader = trained()
    run = dynamix.attach(model, optimizer, loader)
    for _ in run.epochs(epochs):
        yield seconds_of(run.batches(), model, optimizer, run.backward)
    run.close()


def seconds_of(batches: Iterable[Any], model: nn.Module, optimizer: torch.optim.Optimizer, backward: Any) -> float:
    begun_s, samples = time.perf_counter(), 0
    for inputs, targets in batches:
        optimizer.zero_grad()
        backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        samples += len(inputs)
    assert samples == SAMPLES, f"a pass had {samples} samples, expected {SAMPLES}"
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    main()
