"""Whether trainings in Lightning, accelerate and transformers reach their bars on three uneven workers of real BytePS.

    python -m benchmarks.studies.frameworks [--only FRAMEWORK] [--json FILE]

The scripts are those of benchmarks/workloads/frameworks. Bars: 85 % on Fashion-MNIST (12,000 images, four passes), 2.5
nats per byte on lines of source code (2,200 lines, eight passes; log(256) = 5.5 if all bytes were alike), and three
changes of the batch sizes. The exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.page import markdown
from benchmarks.studies.launching import launched
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Metrics, PolicySection, WorkerSection

WORKERS = (WorkerSection(batch=32), WorkerSection(batch=32, speed=0.7), WorkerSection(batch=16, speed=0.4))
PLANS = 3
SCRIPTS = "benchmarks.workloads.frameworks"
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Bar:
    """What a training must reach."""

    metric: str
    value: float
    higher_is_better: bool

    def is_met(self, value: float) -> bool:
        return value >= self.value if self.higher_is_better else value <= self.value


IMAGES, TEXT = Bar("accuracy", 0.85, True), Bar("loss", 2.5, False)
BARS = {"lightning": IMAGES, "accelerate": IMAGES, "transformers": TEXT}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training has reached."""

    framework: str
    metric: str
    value: float
    bar: float
    plans: int
    seconds: float
    is_met: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(BARS), help="this framework alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args()
    outcomes = [outcome_of(framework) for framework in BARS if args.only in (None, framework)]
    print(markdown([row(outcome) for outcome in outcomes]))
    if args.json:
        args.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    return int(not all(outcome.is_met for outcome in outcomes))


def outcome_of(framework: str) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="dx-frameworks-") as folder:
        summary = summary_of(Path(folder), "python", "-m", f"{SCRIPTS}.with_{framework}")
    bar, plans = BARS[framework], summary["plans_applied"]
    value = summary["metrics"][bar.metric]["last"]
    met = bar.is_met(value) and plans >= PLANS
    return Outcome(framework, bar.metric, value, bar.value, plans, summary["train_s"], met)


def summary_of(folder: Path, *script: str, window: int = 10) -> dict[str, Any]:
    """The summary of a script on three workers. Raises SystemExit, with its output, if the run fails."""
    config = Config(
        name="frameworks",
        run_dir=str(folder / "runs"),
        comm="byteps",
        seed=1,
        cluster=Cluster(workers=WORKERS),
        batch=BatchBounds(min=4, max=96),
        window=window,
        policy=PolicySection(name="ppo"),
        metrics=Metrics(tensorboard=False),
        command=script,
    )
    summary: dict[str, Any] = json.loads(launched(config, folder, _LIMIT_S).summary_json.read_text())
    return summary


def row(outcome: Outcome) -> Mapping[str, str]:
    return {
        "framework": outcome.framework,
        "reached": f"{outcome.metric} {outcome.value:.3f}",
        "bar": f"{outcome.bar}, {PLANS} changes" + ("" if outcome.is_met else ": missed"),
        "changes of sizes": str(outcome.plans),
        "seconds": f"{outcome.seconds:.0f}",
    }


if __name__ == "__main__":
    sys.exit(main())
