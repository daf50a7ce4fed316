"""What a newcomer's first runs lose by adapting: the examples with `ppo` and `goodput` beside fixed sizes.

    python -m benchmarks.parts.first_hour --json FILE      # goes on where it was; after --limit-s SECONDS no run begins
    python -m benchmarks.parts.first_hour --json FILE --page benchmarks/results/first-hour.md      # renews the page

    own         every example under examples/cluster.yaml: two workers, the second half as fast
    equal       every example under three equal workers
    evaluation  three equal workers; worker 0 alone evaluates between batches (processes/first_hour_evaluation.py)
    speeds      the job of configs/demo.yaml: three workers with speeds of 4 : 2 : 1
    long        examples/torch_cnn.py under three equal workers, for about a minute

The first sizes are the same for all policies. The examples train for more passes than they ship with (LONGER), so that
there are plans. `plans` is the mean number of them in a run. The policies of a pair run one after the other, and each
pair begins with the next of them.

`of static` is the geometric mean over the pairs of a policy's samples per second over those of `static`, at least
LEAST. `shows` is the smallest difference that these pairs can show: t of 95 % times the standard error of the mean
logarithm. A case that is below LEAST by no more than that is *not decided*. A run without plans differs from `static`
in nothing but what the policy computes beside it.

`uneven` is the largest relative difference of a worker's share from 1/3 in the tenth plan or a later one, and of `long`
in the last one; at most UNEVEN. `found_s` is how long the first plan took in which each worker has at least 1.5 times
the samples of the next slower one, in seconds after the first window began; at most FOUND_S.

Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

from benchmarks.report.page import markdown, update_page, where
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.run_record.run_folder import RunFolder

LEAST, UNEVEN, FOUND_S = 0.97, 0.10, 3.5
POLICIES = ("static", "ppo", "goodput")
# times the passes that an example ships with; about ten seconds of training
LONGER = {
    "torch_cnn": 12,
    "torch_gpt": 1,
    "torch_resnet": 1,
    "torch_shards": 8,
    "torch_tabular": 5,
    "torch_tokens": 2,
    "lightning_cnn": 5,
    "mxnet_cnn": 4,
}
LONG = 8
_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 240.0
_EQUAL = "{workers: [{batch: 32}, {batch: 32}, {batch: 32}]}"
_OWN = "{workers: [{batch: 32}, {batch: 32, speed: 0.5}]}"

Row = dict[str, Any]


class Case(NamedTuple):
    """One training under one cluster file."""

    part: str
    script: str
    cluster: str
    policies: tuple[str, ...] = POLICIES

    @property
    def name(self) -> str:
        return f"{self.part} {self.script}"


def cases(names: Sequence[str]) -> Iterator[Case]:
    """All cases of these examples."""
    for script in names:
        yield Case("own", script, _OWN)
        yield Case("equal", script, _EQUAL)
    yield Case("evaluation", "first_hour_evaluation", _EQUAL)
    yield Case("long", "torch_cnn", _EQUAL)
    yield Case("speeds", "demo", "", ("ppo", "goodput"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="rows and figures; goes on with them")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each policy (default: %(default)s)")
    parser.add_argument("--examples", nargs="*", default=list(LONGER), help="only these (default: all)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the figures of this page")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this time")
    args = parser.parse_args()
    rows: list[Row] = json.loads(args.json.read_text())["rows"] if args.json.exists() else []
    done = {(row["case"], row["policy"], row["pair"]) for row in rows}
    began_s, all_cases = time.monotonic(), list(cases(args.examples))
    todo = [one for one in _planned(all_cases, args.pairs) if (one[0].name, *one[1:]) not in done]
    with exclusive_machine(lambda: print("another grid runs; waiting for its end", flush=True)):
        for number, (case, policy, pair) in enumerate(todo, start=1):
            if time.monotonic() - began_s > args.limit_s:
                print(f"{len(todo) - number + 1} runs are left for another call")
                break
            row = {"case": case.name, "policy": policy, "pair": pair, **measured(case, policy)}
            rows.append(row)
            args.json.write_text(json.dumps({"machine": where(), "figures": figures(rows), "rows": rows}, indent=1))
            print(f"{number}/{len(todo)} {case.name}, {policy}: {row['samples_per_s']:,.0f} samples/s", flush=True)
    if args.page:
        write_page(args.page, rows)
    sys.exit(show(figures(rows)))


def _planned(all_cases: Sequence[Case], pairs: int) -> Iterator[tuple[Case, str, int]]:
    """One pair of every case before the next pair begins; each pair begins with another policy."""
    for pair in range(pairs):
        for case in all_cases:
            turn = pair % len(case.policies)
            for policy in case.policies[turn:] + case.policies[:turn]:
                yield case, policy, pair


def measured(case: Case, policy: str) -> Row:
    """One run. Ends this program if the run fails."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        command = [sys.executable, "-m", "dynamix_ps.cli.main", "launch", "--policy", policy]
        command += ["--run-dir", str(base / "runs"), *_job(case, base)]
        done = subprocess.run(
            command,
            cwd=_ROOT if case.script == "demo" else base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            sys.exit(f"error: {case.name} with {policy} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        folder = RunFolder((base / "runs" / "latest").resolve())
        summary = json.loads(folder.summary_json.read_text())
        plans = [row for row in _rows(folder.path / "plans.csv") if row["status"] == "applied"]
        sizes = [[int(row[key]) for key in row if re.fullmatch(r"batch_\d+", key)] for row in plans]
        return {
            "samples_per_s": summary["samples_per_s"],
            "train_s": summary["train_s"],
            "gain": summary["gain"]["samples_per_s_ratio"],
            "estimated": (summary["gain"]["first"] or {}).get("estimated"),
            "plans": sizes,
            "found_s": _found_s(folder, plans, sizes),
        }


def _job(case: Case, base: Path) -> list[str]:
    """What `dynamix launch` is told of this case."""
    if case.script == "demo":
        return ["-c", "configs/demo.yaml"]
    file = base / "cluster.yaml"
    file.write_text(f"name: first-hour\nseed: 1\ncluster: {case.cluster}\nbatch: {{min: 4, max: 128}}\nwindow: 10\n")
    return ["-c", str(file), "--", sys.executable, _longer(case, base)]


def _longer(case: Case, base: Path) -> str:
    """The script of a case, with more passes where it is an example."""
    script, longer = case.script, LONGER.get(case.script, 1) * (LONG if case.part == "long" else 1)
    if script not in LONGER:
        return str(_ROOT / "benchmarks" / "parts" / "processes" / f"{script}.py")
    text = (_ROOT / "examples" / f"{script}.py").read_text(encoding="utf-8")
    passes = r"(\(epochs=|max_epochs=|^EPOCHS, \w+ = )(\d+)"
    text, found = re.subn(passes, lambda m: f"{m[1]}{int(m[2]) * longer}", text, count=1, flags=re.MULTILINE)
    assert found, f"{script} does not say how many passes it trains"
    (base / f"{script}.py").write_text(text, encoding="utf-8")
    return f"{script}.py"


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _found_s(folder: RunFolder, plans: Sequence[dict[str, str]], sizes: Sequence[Sequence[int]]) -> float | None:
    """Seconds from the beginning of the first window to the first plan with steps of 1.5 between the workers."""
    windows = _rows(folder.path / "windows.csv")
    if not windows:
        return None
    begin_s = min(float(row["time_s"]) - float(row["duration_s"]) for row in windows)
    for row, ordered in zip(plans, sizes, strict=True):
        if all(fast >= 1.5 * slow for fast, slow in itertools.pairwise(ordered)):
            return float(row["applied_s"]) - begin_s
    return None


def write_page(page: Path, rows: Sequence[Row]) -> None:
    """Renew the figures of a page. Raises UsageError if it cannot be written."""
    told = f"`python -m benchmarks.parts.first_hour --json FILE`: {len(rows)} runs on {where()}."
    update_page(page, f"{told}\n\n{markdown(table_of(figures(rows)))}\n")


def figures(rows: Sequence[Row]) -> list[Row]:
    """One line per case and policy."""
    found = []
    for case, policy in dict.fromkeys((row["case"], row["policy"]) for row in rows if row["policy"] != "static"):
        own = {row["pair"]: row for row in rows if (row["case"], row["policy"]) == (case, policy)}
        fixed = {row["pair"]: row for row in rows if (row["case"], row["policy"]) == (case, "static")}
        plans = statistics.fmean(len(row["plans"]) for row in own.values())
        line: Row = {"case": case, "policy": policy, "pairs": len(own), "plans": plans, "verdict": ""}
        if logs := [
            math.log(own[pair]["samples_per_s"] / fixed[pair]["samples_per_s"]) for pair in own if pair in fixed
        ]:
            line["of_static"] = math.exp(statistics.fmean(logs))
            line["shows"] = math.nan
            if len(logs) > 1:
                line["shows"] = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
            if line["of_static"] < LEAST:
                reach = line["of_static"] * math.exp(line["shows"])
                line["verdict"] = "missed" if reach < LEAST else "not decided"
        if case.startswith(("equal", "evaluation", "long")):
            late = (row["plans"][-1:] if case.startswith("long") else row["plans"][9:] for row in own.values())
            line["uneven"] = max(map(_uneven, late), default=0.0)
            if line["uneven"] > UNEVEN:
                line["verdict"] = "missed"
        if case.startswith("speeds"):
            times_s = [math.inf if row["found_s"] is None else row["found_s"] for row in own.values()]
            line["found_s"] = max(times_s)
            if line["found_s"] > FOUND_S:
                line["verdict"] = "missed"
        found.append(line)
    return found


def _uneven(plans: Sequence[Sequence[int]]) -> float:
    """The largest relative difference of a share from an equal one."""
    return max((abs(size * len(sizes) / sum(sizes) - 1) for sizes in plans for size in sizes), default=0.0)


def show(lines: Sequence[Row]) -> int:
    """Print the figures. 1 if a bar is missed, else 0."""
    rows = table_of(lines)
    table = Table(
        title=f"of static at least {LEAST}; shares of equal workers within {UNEVEN:.0%}; found in {FOUND_S} s"
    )
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if column in ("case", "policy") else "right")
    for row in rows:
        table.add_row(*row.values())
    Console(width=120).print(table)
    return int(any(line["verdict"] == "missed" for line in lines))


def table_of(lines: Sequence[Row]) -> list[dict[str, str]]:
    """The figures, a line per case and policy."""
    return [
        {name: str(line[name]) for name in ("case", "policy", "pairs")}
        | {name.replace("_", " "): _number(line.get(name), spec) for name, spec in _COLUMNS.items()}
        | {"": line["verdict"]}
        for line in lines
    ]


_COLUMNS = {"plans": ".1f", "of_static": ".3f", "shows": ".3f", "uneven": ".0%", "found_s": ".2f"}


def _number(value: float | None, spec: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, spec)


if __name__ == "__main__":
    main()
