"""Which learning rate suits a workload of the suite with each optimizer? Short trainings in one process, one seed.

    python -m benchmarks.studies.learning_rates [--only text-gpt]

Each training is the workload's own script with the global batch of three workers' first sizes, over all or some of the
workload's epochs. What counts is the mean of the last evaluations, as in the suite. A training that has ended is a line
of learning-rates.csv, and the same command goes on from there. With one seed and so few samples this finds a rate that
works, within a factor of two; short trainings favour small rates and fast decay.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from benchmarks.studies.launching import launched
from benchmarks.suite.cell import ENVIRONMENT
from benchmarks.suite.metric import METRICS
from benchmarks.suite.result_of_run import divergence
from benchmarks.suite.workloads import Optimizer, load_workload
from benchmarks.workloads.goal import AVERAGED, MetricName
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Metrics, Worker

WORKERS, SEED = 3, 1
LIMIT_S = 1200.0  # of one training, on a busy machine
DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Search:
    """Learning rates to try, in trainings of so many epochs."""

    workload: str
    optimizer: Optimizer
    rates: tuple[float, ...]
    epochs: int


SEARCHES = (
    Search("text-gpt", "adamw", (0.001, 0.002, 0.004, 0.008), epochs=1),
    Search("text-gpt", "sgd", (0.1, 0.3, 1.0), epochs=1),
    Search("cifar-transformer", "sgd", (0.02, 0.06, 0.2), epochs=2),
    Search("cifar-vgg11", "adam", (0.0003, 0.001, 0.003), epochs=2),
    Search("cifar-resnet", "adam", (0.001, 0.003, 0.01), epochs=2),
)
Row = Mapping[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--only", metavar="WORKLOAD", help="this one alone")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start no training after this time")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file, began_s = args.out / "learning-rates.csv", time.monotonic()
    rows = read(file)
    for search, rate in missing(rows, SEARCHES):
        if args.only in (None, search.workload) and time.monotonic() - began_s < args.limit_s:
            rows.append(trained(search, rate))
            write_csv(file, rows)
            print(" ".join(rows[-1].values()), flush=True)
    print(f"{len(list(missing(rows, SEARCHES)))} trainings are left", flush=True)
    if rows:
        took_s = sum(float(row["took_s"]) for row in rows)
        told = f"`python -m benchmarks.studies.learning_rates`: {took_s:,.0f} s on {where()}."
        update_page(args.out / "learning-rates.md", f"{told}\n\n{markdown(table(rows))}\n")


def read(file: Path) -> list[Row]:
    """The trainings that have ended; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def missing(rows: Sequence[Row], searches: Sequence[Search]) -> Iterator[tuple[Search, float]]:
    """What is still to be trained."""
    done = {(row["workload"], row["optimizer"], float(row["rate"]), int(row["epochs"])) for row in rows}
    for search in searches:
        for rate in search.rates:
            if (search.workload, search.optimizer, rate, search.epochs) not in done:
                yield search, rate


def trained(search: Search, rate: float) -> Row:
    """Train once."""
    began_s = time.monotonic()
    metric: MetricName = load_workload(search.workload).metric
    with tempfile.TemporaryDirectory(prefix="dx-rates-") as temporary:
        folder = Path(temporary)
        try:
            summary = json.loads(launched(config_of(search, rate, folder), folder, LIMIT_S).summary_json.read_text())
        except SystemExit:
            if not divergence(folder / "runs" / "latest"):
                raise
            value = DIVERGED
        else:
            value = f"{reached(summary, metric):.5g}"
    return {
        "workload": search.workload,
        "optimizer": search.optimizer,
        "rate": f"{rate:g}",
        "epochs": str(search.epochs),
        "seed": str(SEED),
        "metric": metric,
        "value": value,
        "took_s": f"{time.monotonic() - began_s:.1f}",
    }


def reached(summary: Mapping[str, Any], metric: MetricName) -> float:
    """Mean of the last evaluations."""
    return float(np.mean([one["values"][metric] for one in summary["evaluations"][-AVERAGED:]]))


def config_of(search: Search, rate: float, folder: Path) -> Config:
    """One process that trains the global batch."""
    workload = load_workload(search.workload)
    changed = {"optimizer": search.optimizer, "lr": {search.optimizer: rate}, "epochs": search.epochs}
    return Config(
        name="rates",
        run_dir=str(folder / "runs"),
        seed=SEED,
        comm="local",
        mode="off",
        cluster=Cluster(workers=(Worker(batch=WORKERS * workload.batch),)),
        batch=BatchBounds(unit=workload.unit, min=workload.min, max=WORKERS * workload.max),
        metrics=Metrics(tensorboard=False),
        command=(*workload.model_copy(update=changed).command, "--seed", str(SEED)),
        env=ENVIRONMENT,
    )


def table(rows: Sequence[Row]) -> list[dict[str, str]]:
    """A row for each workload and optimizer."""
    found = []
    for workload, optimizer in dict.fromkeys((row["workload"], row["optimizer"]) for row in rows):
        tried = [row for row in rows if (row["workload"], row["optimizer"]) == (workload, optimizer)]
        metric = METRICS[load_workload(workload).metric]
        arrived = {row["rate"]: float(row["value"]) for row in tried if row["value"] != DIVERGED}
        best = max(arrived, key=lambda rate: arrived[rate] if metric.higher_is_better else -arrived[rate], default="")
        shown = {rate: metric.form.format(metric.scale * value) for rate, value in arrived.items()}
        values = [
            f"{row['rate']}: {shown.get(row['rate'], DIVERGED)}"
            for row in sorted(tried, key=lambda row: float(row["rate"]))
        ]
        found.append(
            {
                "workload": f"`{workload}`",
                "optimizer": optimizer,
                "epochs": tried[0]["epochs"],
                "metric": metric.title,
                "rate: reached": ", ".join(f"**{text}**" if text.startswith(f"{best}:") else text for text in values),
            }
        )
    return found


if __name__ == "__main__":
    main()
