"""What the soak trains, and what must hold when it ends."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

SAMPLES, WIDTH, CLASSES, RATE, DECAY = 960, 256, 64, 0.05, 0.01
TOLERANCE = 1e-5
START_S = 20.0  # of a process, until it has all that it needs
GROWTH, GROWTH_BYTES = 0.1, 8 << 20  # of a process: more than both together is no flat memory (chosen by us)

Weights = Sequence[torch.Tensor]


class Training:
    """Model, optimizer and data as they are at first, the same in every process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # for such small sums others only wait
        torch.manual_seed(0)
        self.data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(0, CLASSES, (SAMPLES,)))
        self.model = torch.nn.Linear(WIDTH, CLASSES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9, weight_decay=DECAY)


@dataclass(frozen=True, slots=True)
class Sum:
    """What a sum was made of: of which workers, of which samples, and with which factor on the rate its step was."""

    iteration: int
    present: tuple[int, ...]
    numbers: tuple[int, ...]
    factor: float


def history(told: Iterable[Sum]) -> tuple[list[Sum], list[str]]:
    """All sums in order, from what the workers have told, and what is wrong with it."""
    by_iteration: dict[int, Sum] = {}
    wrong = set()
    for one in told:
        if by_iteration.setdefault(one.iteration, one) != one:
            wrong.add(one.iteration)
    found = [f"workers tell different things of iteration {iteration}" for iteration in sorted(wrong)]
    missing = sorted(set(range(max(by_iteration, default=-1) + 1)).difference(by_iteration))
    found += [f"nobody has made iteration {iteration}" for iteration in missing]
    return [by_iteration[iteration] for iteration in sorted(by_iteration)], found


def wrong_samples(sums: Sequence[Sum]) -> list[str]:
    """Epochs in which a sample is missing, or came twice."""
    order = [number for one in sums for number in one.numbers]
    epochs = [order[begin : begin + SAMPLES] for begin in range(0, len(order), SAMPLES)]
    wrong = [number for number, epoch in enumerate(epochs) if sorted(epoch) != list(range(SAMPLES))]
    return [f"epoch {number} has not every sample once" for number in wrong]


def wrong_weights(sums: Sequence[Sum], found: Mapping[int, Weights]) -> list[str]:
    """How weights of workers differ from each other, and from those of one process with the same samples and rates."""
    if not found:
        return ["no worker has written its weights"]
    first, *others = sorted(found)
    wrong = [
        f"the weights of worker {rank} are not those of worker {first}"
        for rank in others
        if not all(map(torch.equal, found[first], found[rank]))
    ]
    alone = Training()
    inputs, targets = alone.data.tensors
    for one in sums:
        alone.optimizer.param_groups[0]["lr"] = RATE * one.factor
        alone.optimizer.zero_grad()
        numbers = list(one.numbers)
        cross_entropy(alone.model(inputs[numbers]), targets[numbers]).backward()  # type: ignore[no-untyped-call]
        alone.optimizer.step()
    for mine, expected in zip(found[first], (one.detach() for one in alone.model.parameters()), strict=True):
        if not torch.allclose(mine, expected, rtol=TOLERANCE, atol=TOLERANCE):
            wrong.append(f"weights differ from those of one process by {float((mine - expected).abs().max()):.1e}")
    return wrong


def wrong_memory(resident: Mapping[str, Sequence[tuple[float, int]]]) -> list[str]:
    """Processes whose memory grows from the second to the last quarter of the soak.

    Args:
        resident: by process, times on one clock with the bytes that it had then.
    """
    times_s = [at_s for samples in resident.values() for at_s, _ in samples]
    if not times_s:
        return []
    begun_s, quarter_s = min(times_s), (max(times_s) - min(times_s)) / 4
    wrong = []
    for name, samples in resident.items():
        ready_s = samples[0][0] + START_S
        settled = [(at_s, size) for at_s, size in samples if at_s >= ready_s]
        early = [size for at_s, size in settled if 1 <= (at_s - begun_s) / quarter_s < 2] if quarter_s else []
        late = [size for at_s, size in samples if (at_s - begun_s) / quarter_s >= 3] if quarter_s else []
        if early and late:
            before, after = statistics.median(early), statistics.median(late)
            if after > before * (1 + GROWTH) + GROWTH_BYTES:
                wrong.append(f"{name} grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB")
    return wrong
