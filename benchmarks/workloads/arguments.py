"""The command line arguments of the training scripts of all frameworks."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from benchmarks.workloads import data
from benchmarks.workloads.goal import METRICS
from benchmarks.workloads.schedule import SCHEDULES

Framework = Literal["torch", "mxnet"]
DATA_SETS: dict[Framework, tuple[str, ...]] = {"torch": data.NAMES, "mxnet": data.IMAGES}
PRECISIONS = ("bf16",)  # of mixed precision
OPTIMIZERS: dict[Framework, tuple[str, ...]] = {"torch": ("sgd", "adam", "adamw"), "mxnet": ("sgd", "adam")}


def parse_arguments(
    about: str | None, framework: Framework, models: Iterable[str], *own: argparse.ArgumentParser
) -> argparse.Namespace:
    """Parse them. `about` is the first text of --help; `models` are the names to choose from.

    Args:
        own: parsers of the script's own arguments, without help.
    """
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=kind, parents=own)
    parser.add_argument("--data", choices=DATA_SETS[framework], default="fashion-mnist")
    parser.add_argument("--path", type=Path, help="file or folder of the data set (default: search for it)")
    parser.add_argument("--test-samples", type=int, metavar="N", help="evaluate on the first N test samples alone")
    parser.add_argument("--model", choices=sorted(models), default="cnn")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--most-epochs", type=int, metavar="N", help="the most epochs if the target is not reached")
    parser.add_argument("--metric", choices=METRICS, default="accuracy", help="what --target is about")
    parser.add_argument("--target", type=float, metavar="VALUE", help="see --most-epochs")
    parser.add_argument("--optimizer", choices=OPTIMIZERS[framework], default="sgd")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (adam: try 0.001)")
    parser.add_argument("--lr-factor", type=float, default=1.0, metavar="F", help="on --lr, to set it wrong on purpose")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--schedule", choices=SCHEDULES, default="constant", help="cosine: after a warm-up")
    parser.add_argument("--eval-every", type=int, default=100, metavar="N", help="iterations between evaluations")
    parser.add_argument("--eval-samples", type=int, metavar="N", help="samples between evaluations (not iterations)")
    if framework == "torch":
        parser.add_argument("--autocast", choices=PRECISIONS, help="mixed precision: compute layers in this type")
        parser.add_argument("--ema-decay", type=float, metavar="D", help="judge averaged weights, of this decay")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.most_epochs = max(args.most_epochs or 0, args.epochs)
    if not 0 < args.lr_factor < math.inf:
        parser.error(f"--lr-factor must be a number above 0, got {args.lr_factor:g}")
    args.lr *= args.lr_factor
    if args.test_samples is not None and args.test_samples < 1:
        parser.error(f"--test-samples must be 1 or more, got {args.test_samples}")
    if args.metric == "bpb" and args.data != data.TEXT:
        parser.error(f"--metric bpb is of --data {data.TEXT}, got --data {args.data}; use --metric loss")
    if args.schedule == "cosine" and args.most_epochs > args.epochs:
        parser.error("--schedule cosine needs a known end, got --most-epochs; leave it out, or use --schedule constant")
    return args
