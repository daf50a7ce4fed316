"""Cost of the hooks on the training thread: `mode: observe` against `mode: off`, interleaved in one run.

    python -m benchmarks.parts.hooks --json FILE

Two workers train the CNN on real BytePS with a real arbitrator. Each worker has four copies of the model: two are
attached with mode off, two with mode observe (votes, norms, records, reports). A round is one iteration of each copy;
the order rotates from round to round. Equal copies differ by up to 1 % because of their place in memory and in the
round alone. So there are two copies of each mode, made in the order off, observe, observe, off.

Per run, the overhead is the mean over rounds of (observe - off), divided by the mean iteration time with mode off. It
is a mean because part of the cost occurs only every few iterations. The TRIM largest and smallest differences
(interruptions by other programs) are left out. `overhead` is the mean of several runs with fresh processes, because the
place of the models in memory changes a single run by about 1 % either way.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from benchmarks.workloads import models
from worker_hooks.session import Session
from worker_hooks.settings import Settings
from worker_hooks.torch.run import Run

BATCH = 64
WARM_UP = 20
TRIM = 0.05  # of the rounds, on each side
COPIES = ("off", "observe", "observe", "off")
CLUSTER = """
name: hooks
mode: observe
window: 20
emulation: none
cluster:
  workers: [{{batch: {batch}}}, {{batch: {batch}}}]
policy: {{name: proportional}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=300, help="iterations of each copy in each run")
    parser.add_argument("--runs", type=int, default=6, help="runs with fresh processes")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run_worker(args.rounds, args.worker)
        return
    rows = []
    for number in range(args.runs):
        print(f"run {number + 1} of {args.runs}", file=sys.stderr, flush=True)
        rows += [{"run": number, **row} for row in measure(args.rounds)]
    overheads = [row["overhead"] for row in rows]
    overhead = statistics.fmean(overheads)
    table = Table(title="hook cost on the training thread, CNN, 2 workers")
    for column in ("run", "worker", "off ms", "observe ms", "difference ms", "overhead"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["run"] + 1),
            str(row["worker"]),
            f"{row['off_ms']:.3f}",
            f"{row['observe_ms']:.3f}",
            f"{row['difference_ms']:+.4f}",
            f"{row['overhead']:+.2%}",
        )
    Console().print(table)
    print(
        f"overhead {overhead:+.2%} of an iteration (runs and workers: {min(overheads):+.2%} to {max(overheads):+.2%})"
    )
    if args.json:
        figures = {"overhead": overhead, "runs": rows, "rounds": args.rounds, "batch": BATCH, "cores": os.cpu_count()}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(rounds: int) -> list[dict[str, Any]]:
    """Run both workers under the launcher once and read their results."""
    with tempfile.TemporaryDirectory(prefix="dynamix-hooks-") as folder:
        config, results = Path(folder, "hooks.yaml"), Path(folder, "results")
        results.mkdir()
        config.write_text(CLUSTER.format(batch=BATCH))
        worker = ["python", "-m", "benchmarks.parts.hooks", "--rounds", str(rounds), "--worker", str(results)]
        launch = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", str(config), "--run-dir", folder]
        subprocess.run([*launch, "--", *worker], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(file.read_text()) for file in sorted(results.iterdir())]


def run_worker(rounds: int, results: Path) -> None:
    """Run one worker: alternate iterations of both modes and write the means."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.utils.data.TensorDataset(torch.randn(4096, 1, 28, 28), torch.randint(0, 10, (4096,)))
    settings = Settings.from_environment()
    loops = [iterate(mode, settings, images, rounds + WARM_UP) for mode in COPIES]
    differences: list[tuple[float, float]] = []  # per round: seconds with mode off, additional ones with observe
    for number in range(rounds + WARM_UP):
        times_s = [0.0] * len(loops)
        turned = [(number + place) % len(loops) for place in range(len(loops))]
        for copy in turned if number // len(loops) % 2 else reversed(turned):
            times_s[copy] = next(loops[copy])
        seconds = {mode: sum(t for t, m in zip(times_s, COPIES, strict=True) if m == mode) / 2 for mode in COPIES}
        differences.append((seconds["off"], seconds["observe"] - seconds["off"]))
    kept = sorted(differences[WARM_UP:], key=lambda pair: pair[1])
    trimmed = int(len(kept) * TRIM)
    off, difference = map(statistics.fmean, zip(*kept[trimmed : len(kept) - trimmed], strict=True))
    rank = int(os.environ["DMLC_WORKER_ID"])
    row = {
        "worker": rank,
        "off_ms": off * 1e3,
        "observe_ms": (off + difference) * 1e3,
        "difference_ms": difference * 1e3,
        "overhead": difference / off,
    }
    (results / f"worker-{rank}.json").write_text(json.dumps(row))


def iterate(mode: str, settings: Settings, images: Any, iterations: int) -> Iterator[float]:
    """Train a separate model in `mode`; yields the seconds of each iteration, including work after the step."""
    model = models.make_model("cnn", (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = Run([model], [optimizer], images, Session.join(dataclasses.replace(settings, mode=mode), "torch"))
    batches = run.batches(iterations=iterations)
    for _ in range(iterations):
        began_s = time.perf_counter()
        inputs, targets = next(batches)
        optimizer.zero_grad()
        logits = model(inputs)
        run.backward(cross_entropy(logits, targets), correct=(logits.argmax(1) == targets).sum())
        optimizer.step()
        yield time.perf_counter() - began_s
    next(batches, None)
    run.close()


if __name__ == "__main__":
    main()
