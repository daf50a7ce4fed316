"""Time of a training step over batch size on this machine: how far it is from a straight line.

    python -m benchmarks.parts.batch_times --json FILE

One process with one thread computes forward and backward passes of models of the workloads, with batches from 8 to 960
samples in turn. CPU time counts, and of several repetitions the shortest, because other programs can only slow it down.
To the times, three shapes are fitted by least relative squares:

    line    t = fixed + per sample * b
    tiles   the part `part` of the time per sample counts whole tiles (dynamix_ps/sim/cluster/effects/tiles.py)
    cliff   beyond `above` each sample takes `slope` times as long (effects/cliffs.py)

`off` is the root mean square of the relative error. Contention: by what part one process is slowed down by a second one
that does the same (effects/contention.py). Heat: time of a step in the last seconds of sustained load over that in the
first ones (effects/heat.py). The figures say where magnitudes in scenarios come from; they hold for this machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch.nn.functional import cross_entropy

from benchmarks.report.page import where
from benchmarks.workloads.models import MODELS, make_model
from dynamix_ps.sim.cluster.effects.cliffs import extra
from dynamix_ps.sim.cluster.effects.tiles import padding

NAMES = ("cnn", "resnet8", "vgg11-slim")
SIZES = (*range(8, 65, 4), *range(80, 257, 16), *range(320, 1025, 128))
TILES = (8, 16, 32, 64, 128)
CONTENDED = 128  # samples per step where two processes compete, and where heat is looked for
Array = NDArray[np.float64]


def step_of(name: str) -> Callable[[int], None]:
    """A function that makes one step with so many samples."""
    torch.set_num_threads(1)
    shape = MODELS[name].shapes[0]
    model, generator = make_model(name, shape, 10), torch.Generator().manual_seed(0)
    inputs = torch.randn((max(SIZES), *shape), generator=generator)
    labels = torch.randint(10, (max(SIZES),), generator=generator)

    def step(size: int) -> None:
        model.zero_grad()
        cross_entropy(model(inputs[:size]), labels[:size]).backward()  # type: ignore[no-untyped-call]

    return step


def seconds_of(step: Callable[[int], None], size: int) -> float:
    """CPU seconds."""
    began_s = time.process_time()
    step(size)
    return time.process_time() - began_s


def times_s(name: str, repetitions: int) -> Array:
    """Shortest time for each of SIZES."""
    step = step_of(name)
    rounds = [[seconds_of(step, size) for size in SIZES] for _ in range(1 + repetitions)]
    shortest: Array = np.min(rounds[1:], axis=0)  # the first one prepares the kernels
    return shortest


def shapes(sizes: Array, time_s: Array) -> dict[str, dict[str, float]]:
    """The best fit of each shape."""
    line, off = _fitted(time_s, sizes)
    tiles = []
    for tile in TILES:
        (_, slope, padded), error = _fitted(time_s, sizes, padding(sizes, np.array(float(tile)), np.ones(())))
        tiles.append((error, tile, padded / slope))
    cliffs = []
    for above in sizes[3:-3]:
        (_, slope, further), error = _fitted(time_s, sizes, extra(sizes, above, np.float32(2)))
        cliffs.append((error, above, 1 + further / slope))
    (of_tiles, tile, part), (of_cliff, above, steeper) = min(tiles), min(cliffs)
    return {
        "line": {"fixed_ms": 1e3 * line[0], "per_sample_ms": 1e3 * line[1], "off": off},
        "tiles": {"samples": float(tile), "part": float(part), "off": of_tiles},
        "cliff": {"above": float(above), "slope": float(steeper), "off": of_cliff},
    }


def _fitted(time_s: Array, *features: Array) -> tuple[Array, float]:
    """Weights of 1 and of the features, and the root mean square of the relative error."""
    relative = np.stack((np.ones_like(time_s), *features), axis=1) / time_s[:, None]
    weights, *_ = np.linalg.lstsq(relative, np.ones_like(time_s), rcond=None)
    return weights, float(np.sqrt(np.mean((relative @ weights - 1) ** 2)))


def contention(name: str, seconds: float) -> float:
    """Time of a step beside a second process that does the same, over that alone, minus 1."""
    alone, together = (_medians(name, count, seconds) for count in (1, 2))
    return float(np.mean(together) / alone[0] - 1)


def _medians(name: str, processes: int, seconds: float) -> list[float]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    started = [context.Process(target=_compete, args=(name, seconds, barrier, results)) for _ in range(processes)]
    for process in started:
        process.start()
    found = [results.get() for _ in started]
    for process in started:
        process.join()
    return found


def _compete(name: str, seconds: float, barrier: Any, results: Any) -> None:
    step = step_of(name)
    step(CONTENDED)
    barrier.wait()
    end_s, taken = time.perf_counter() + seconds, []
    while time.perf_counter() < end_s:
        taken.append(seconds_of(step, CONTENDED))
    results.put(float(np.median(taken)))


def heat(name: str, seconds: float) -> float:
    """Median time of a step in the last fifth of the load over that in the first."""
    step, taken = step_of(name), []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        taken.append(seconds_of(step, CONTENDED))
    fifth = max(len(taken) // 5, 1)
    return float(np.median(taken[-fifth:]) / np.median(taken[1 : 1 + fifth]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--contention-s", type=float, default=3, help="how long processes compete, for each model")
    parser.add_argument("--heat-s", type=float, default=20, help="how long the load lasts that looks for heat")
    args = parser.parse_args()
    sizes = np.array(SIZES, dtype=np.float64)
    figures: dict[str, Any] = {"machine": where(), "sizes": list(SIZES), "models": {}}
    for name in NAMES:
        time_s = times_s(name, args.repetitions)
        found = shapes(sizes, time_s)
        slowed = contention(name, args.contention_s)
        figures["models"][name] = {"time_s": time_s.tolist(), "shapes": found, "contention": slowed}
        Console().print(name, found, f"contention {slowed:.2f}", highlight=False)
        _write(args.json, figures)
    figures["heat"] = heat(NAMES[0], args.heat_s)
    Console().print(f"heat {figures['heat']:.3f}", highlight=False)
    _write(args.json, figures)


def _write(file: Path | None, figures: dict[str, Any]) -> None:
    if file:
        file.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
