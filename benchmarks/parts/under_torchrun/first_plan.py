"""Seconds from `pip install` of a wheel to the first adapted plan under torchrun, where torch alone is installed.

    make dist && python -m benchmarks.parts.under_torchrun.first_plan --wheel dist/*.whl --json FILE

The environment is new, and torch is installed before the clock begins. pip gets the packages that this one needs from
the package index, without its cache. Then `torchrun --nproc-per-node 2` starts a script of three changed lines
(processes/three_lines.py), whose second worker is slow, with nothing on PATH but the environment: no compiler, no
cluster file. The clock ends when a plan that changes the sizes is in force on both workers. At most LIMIT_S.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.parts.processes import __path__ as processes
from benchmarks.parts.under_torchrun.job import run_two
from benchmarks.report.page import where
from dynamix_ps.packages import installed_version

LIMIT_S = 60.0
_TIMEOUT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True, help="of this package")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(args.wheel.resolve(), Path(folder))
    print(
        f"installed after {figures['install_s']:.1f} s, adapted after {figures['plan_s']:.1f} s (limit {LIMIT_S:.0f})"
    )
    if args.json:
        args.json.write_text(json.dumps({"machine": where(), "figures": figures}, indent=1), encoding="utf-8")
    sys.exit(figures["plan_s"] > LIMIT_S)


def measured(wheel: Path, folder: Path) -> dict[str, float]:
    """Seconds since the clock began: when the package was installed, and when a plan had changed the sizes.

    Raises CalledProcessError if nothing can be installed, and ends this program if the job fails.
    """
    programs = folder / "env" / "bin"
    pip = (programs / "python", "-m", "pip", "install", "-qq")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    subprocess.run([*pip, f"torch=={installed_version('torch')}"], check=True)
    began_s = time.time()
    subprocess.run([*pip, "--no-cache-dir", wheel], check=True)
    installed_s = time.time()
    script = Path(processes[0]) / "three_lines.py"
    run_two((programs / "torchrun",), (script,), folder, {"PATH": str(programs)}, _TIMEOUT_S)
    with (folder / "runs" / "latest" / "plans.csv").open(newline="", encoding="utf-8") as lines:
        applied = [row for row in csv.DictReader(lines) if row["status"] == "applied"]
    changed = next(row for row in applied if row["batch_0"] != row["batch_1"])
    return {"install_s": installed_s - began_s, "plan_s": float(changed["applied_s"]) - began_s}


if __name__ == "__main__":
    main()
