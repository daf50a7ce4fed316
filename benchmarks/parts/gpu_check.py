"""Checks the GPU paths on a machine with an NVIDIA GPU: build, sums, waits, training, mixed precision, times.

    python -m benchmarks.parts.gpu_check [--json FILE]

Every check is a run of real processes (benchmarks/parts/gpu/worker.py) under `dynamix launch`. A check that fails does
not stop the others. The JSON file is written after every check. Without a GPU the script says so, tries nothing, and
ends with 0. With a GPU it ends with 1 if a check failed.

One GPU is enough for most checks: both workers then share it. NCCL refuses two ranks on one GPU of one host, so each
worker gets a host name of its own (NCCL_HOSTID), and NCCL uses sockets. Sums are the same, but times of NCCL mean
little, and the table says "shared GPU". BytePS copies between GPU and host in either case.

On a machine without network the build finds its source package only in the cache: copy
`byteps-0.2.5.post15.tar.gz` to `$DYNAMIX_CACHE/byteps/sdist/` before.

`--rehearse` runs the same checks on the CPU with the BytePS that is installed. This shows that the script works, and
says nothing about GPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.parts.gpu.checks import CHECKS
from benchmarks.parts.gpu.run import Figures, Machine, Outcome, run_checks

NO_GPU = "no GPU: nothing was tried"
LIMIT_S = 450.0


def report(machine: Machine | None, outcomes: Sequence[Outcome]) -> Figures:
    """The JSON document. `machine`: None if there is no GPU."""
    if machine is None:
        place: Figures = {"note": NO_GPU, "gpus": 0}
    else:
        import torch

        place = {"gpus": machine.gpus, "device": machine.name, "torch": torch.__version__, "cuda": torch.version.cuda}
        place["note"] = "" if machine.gpus else "rehearsal on the CPU: says nothing about GPUs"
    return {**place, "checks": [dataclasses.asdict(outcome) for outcome in outcomes]}


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row per check."""
    result = Table(title="GPU paths")
    for column in ("check", "state", "seconds", "figures, or why not"):
        result.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for one in outcomes:
        figures = ", ".join(f"{key} {value}" for key, value in one.figures.items())
        shown = "; ".join(filter(None, (one.detail[-300:], figures[:300])))
        result.add_row(one.name, one.state, f"{one.took_s:.0f}", shown)
    return result


def found_gpus() -> tuple[int, str]:
    """Number of GPUs that torch can use, and the name of the first one."""
    import torch

    if not torch.cuda.is_available():
        return 0, ""
    return torch.cuda.device_count(), torch.cuda.get_device_name(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here, after every check")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="start no check after this (default: %(default)s)"
    )
    parser.add_argument(
        "--only", metavar="WORD", nargs="+", default=[""], help="only checks with one of these words in their name"
    )
    parser.add_argument("--rehearse", action="store_true", help="on the CPU: shows that the script works")
    args = parser.parse_args(arguments)
    console = Console()
    checks = [check for check in CHECKS if any(word in check.name for word in args.only)]
    gpus, name = (0, "CPU") if args.rehearse else found_gpus()
    machine = None

    def tell(outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            last = outcomes[-1]
            console.print(f"{last.name}: {last.state} ({last.took_s:.0f} s) {last.detail[-300:]}", markup=False)
        if args.json:
            args.json.write_text(json.dumps(report(machine, outcomes), indent=2) + "\n", encoding="utf-8")

    if not gpus and not args.rehearse:
        outcomes = [Outcome(check.name, check.about, "untried", "no GPU") for check in checks]
        tell(outcomes[:0])
        if args.json:
            args.json.write_text(json.dumps(report(None, outcomes), indent=2) + "\n", encoding="utf-8")
        console.print(table(outcomes), NO_GPU)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="dx-gpu-"))
    try:
        machine = Machine(gpus, name, folder)
        outcomes = run_checks(checks, machine, args.limit_s, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(table(outcomes))
    return int(any(one.state == "failed" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
