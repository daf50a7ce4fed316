"""A worker of `benchmarks.parts.output`.

    python -m benchmarks.parts.processes.output_worker KIND RATE BLOCKS FILE

A training whose loop prints RATE lines per second. In turn, a block of ITERATIONS iterations has no output, output to
a file, and output to the launcher. Then the worker prints as fast as it can. Worker 0 writes to FILE the seconds of
every block and of the last part, and how many lines it has printed in each kind of block.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TextIO

ITERATIONS = 60  # of a block
LONGEST_S = 0.1  # of output that an iteration makes up for: a worker that is held up prints less
BATCH, WIDTH = 32, 512
AT_ONCE = 100_000
LINES = {
    "short": ("x" * 79, "\n"),
    "long": ("x" * 999, "\n"),
    "progress": ("x" * 79, "\r"),  # a bar, which never ends its line
    "stderr": ("x" * 79, "\n"),
}


def main() -> None:
    import torch

    import dynamix_ps.torch as dynamix

    kind, rate, blocks, file = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    text, end = LINES[kind]
    shown = sys.stderr if kind == "stderr" else sys.stdout
    plain = open(f"{file}.{os.getpid()}", "w", buffering=1)  # noqa: SIM115  until the end
    places: dict[str, TextIO | None] = {"quiet": None, "file": plain, "launcher": shown}
    taken_s: dict[str, list[float]] = {name: [] for name in places}  # of each block, without its first iteration
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(4096, WIDTH), torch.randint(0, 10, (4096,)))
    run = dynamix.attach(model, optimizer, data)
    sequence = [name for _ in range(blocks) for name in places]
    printed, lines = 0, dict.fromkeys(places, 0)
    began_s = before_s = time.monotonic()
    for number, (inputs, targets) in enumerate(run.batches(iterations=ITERATIONS * len(sequence))):
        name = sequence[number // ITERATIONS]
        optimizer.zero_grad()
        run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        if number % ITERATIONS == 0:
            began_s, printed = before_s, 0
        if (place := places[name]) is not None:
            owed = int(rate * (time.monotonic() - began_s)) - printed
            for _ in range(min(owed, int(rate * LONGEST_S))):
                print(text, end=end, file=place)
                lines[name] += 1
            printed += owed
        now_s = time.monotonic()
        if number % ITERATIONS == 0:  # it may wait for a worker that still prints
            taken_s[name].append(0.0)
        else:
            taken_s[name][-1] += now_s - before_s
        before_s = now_s
    began_s = time.monotonic()
    for _ in range(AT_ONCE):
        print(text, end=end, file=shown)
    at_once_s = time.monotonic() - began_s
    if run.rank == 0:
        file.write_text(json.dumps({"taken_s": taken_s, "lines": lines, "at_once_s": at_once_s}))
    run.close()


if __name__ == "__main__":
    main()
