"""Runs the tests again and again: whether some fail now and then, and how long all take.

    python -m tests.repeated --runs 5 test        # make test
    python -m tests.repeated --runs 10 check      # make check

Each run is a row of tests/repeated.csv. Rows of the same commit and command count, so a study that was stopped goes on.
The exit code is 1 if a run has failed, or in `make test` a test outside of tests/may_fail.txt, even if it passed alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from tests.failure_log import LOG, commit
from tests.may_fail import allowed

TABLE = Path(__file__).with_suffix(".csv")
FIELDS = ("commit", "command", "begun", "wall_s", "cpu_s", "exit_code", "failed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["test", "check"], help="target of make")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    here = {"commit": commit(), "command": f"make {args.command}"}
    while len(done := [row for row in rows() if here.items() <= row.items()]) < args.runs:
        row = run(here)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    may_fail = {one.test for one in allowed()} if args.command == "test" else set()
    return int(any(row["exit_code"] != "0" or set(row["failed"].split()) - may_fail for row in done))


def rows() -> list[dict[str, str]]:
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def run(here: dict[str, str]) -> dict[str, str]:
    """Run the command once, and add its row."""
    begun, before, logged = datetime.now(timezone.utc), cpu_s(), failures()
    start_s = time.monotonic()
    code = subprocess.run(here["command"].split(), cwd=TABLE.parents[1], check=False).returncode
    row = here | {
        "begun": begun.isoformat(timespec="seconds"),
        "wall_s": f"{time.monotonic() - start_s:.0f}",
        "cpu_s": f"{cpu_s() - before:.0f}",
        "exit_code": str(code),
        "failed": " ".join(failures()[len(logged) :]),
    }
    is_new = not TABLE.exists()
    with TABLE.open("a", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if is_new:
            table.writeheader()
        table.writerow(row)
    return row


def failures() -> list[str]:
    """Names of all tests in the log of failures."""
    return [json.loads(line)["test"] for line in LOG.read_text().splitlines()] if LOG.exists() else []


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
