"""The command line arguments of the training scripts of all frameworks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from benchmarks.workloads import data


def parse_arguments(about: str | None, models: Iterable[str]) -> argparse.Namespace:
    """Parse them. `about` is the first text of --help; `models` are the names to choose from."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=data.NAMES, default="fashion-mnist")
    parser.add_argument("--path", type=Path, help="file or folder of the data set (default: search for it)")
    parser.add_argument("--model", choices=sorted(models), default="cnn")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--most-epochs", type=int, metavar="N", help="the most epochs if the target is not reached")
    parser.add_argument("--target", type=float, default=1.0, metavar="ACCURACY", help="see --most-epochs")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (adam: try 0.001)")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--eval-every", type=int, default=100, metavar="N", help="iterations between evaluations")
    parser.add_argument("--eval-samples", type=int, metavar="N", help="samples between evaluations (not iterations)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.most_epochs = max(args.most_epochs or 0, args.epochs)
    return args
