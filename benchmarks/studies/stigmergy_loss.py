"""What a lost worker costs where workers choose their own sizes, beside an elastic job with the central agent.

    python -m benchmarks.studies.stigmergy_loss [--json FILE] [--runs N]

Both jobs are that of configs/stigmergy.yaml: three workers on real BytePS, one fast, one half and one a quarter as
fast. When all have made KILLED_AT iterations, the slowest one gets SIGKILL.

    stigmergy   it has no arbitrator, and so no coordinator: the job ends. It is started again at once with `--resume`
                and the newest checkpoint, of which there is one every CHECKPOINT_EVERY iterations
    ppo         with `elastic: {min_workers: 2}`: the others go on

    ending      from the signal until `dynamix launch` has ended
    starting    from there to the first iteration of the job that goes on
    repeating   from there until the iteration in which the signal came is complete
    together    from the signal until training is further than it was; of the elastic job there is nothing else

Every run is a row of stigmergy-loss.csv. Runs take about a minute each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from benchmarks.studies.launching import roles_of
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.schema import Config, Elastic, Metrics, Policy
from dynamix_ps.run_record.iteration_mark import read_mark
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

CLUSTER = Path("configs/stigmergy.yaml")
KILLED_AT, CHECKPOINT_EVERY, STRUCK = 70, 40, 2
LIMIT_S, LOOK_S = 120.0, 0.01
PARTS = ("ending_s", "starting_s", "repeating_s", "together_s")
CONTENDERS = {
    "stigmergy": (Policy(name="stigmergy"), Elastic()),
    "ppo": (Policy(name="ppo"), Elastic(min_workers=2)),
}


def config_of(contender: str, folder: Path) -> Config:
    """The cluster file, with which all that is written comes to `folder`."""
    policy, elastic = CONTENDERS[contender]
    job = load_config(CLUSTER)
    changes: dict[str, Any] = {
        "run_dir": str(folder / "runs"),
        "policy": policy,
        "elastic": elastic,
        "checkpoint_every": CHECKPOINT_EVERY,
        "metrics": Metrics(network="off", tensorboard=False, prometheus_port=None),
        "command": (*job.command, "--eval-every", "1000000"),
    }
    return job.model_copy(update=changes)


class Job:
    """One `dynamix launch`, which starts at once."""

    def __init__(self, config: Config, folder: Path, resume: Path | None = None) -> None:
        file = folder / "cluster.yaml"
        file.write_text(dump_config(config))
        words = () if resume is None else ("--resume", str(resume))
        command = [sys.executable, "-m", "dynamix_ps", "launch", "-c", str(file), *words]
        self._output, self._latest = folder / "output", folder / "runs" / "latest"
        self._before = self._latest.resolve()
        with self._output.open("wb") as out:
            self._process = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    @property
    def run(self) -> RunFolder:
        return RunFolder(self._latest.resolve())

    def marks(self, ranks: Sequence[int]) -> list[int]:
        """In which iteration each of these workers is; 0: it has made none in this job."""
        begun = self._latest.exists() and self._latest.resolve() != self._before
        return [read_mark(self.run.iteration_file(rank)) or 0 if begun else 0 for rank in ranks]

    @property
    def first_iteration(self) -> int:
        """With which it began to train."""
        lines = JsonLinesTail(self.run.worker_file(0)).read()
        return next(int(line["iteration"]) for line in lines if line["kind"] == "started")

    def wait_until(self, condition: Callable[[], bool], what: str) -> float:
        """Returns when it came, on the monotonic clock. Raises SystemExit if it does not."""
        ends_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > ends_s:
                text = self._output.read_text(errors="replace")[-3000:]
                raise SystemExit(f"stigmergy_loss: waited {LIMIT_S:g} s for {what}:\n{text}")
            time.sleep(LOOK_S)
        return time.monotonic()

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def kill_worker(self, rank: int) -> float:
        """Returns when, on the monotonic clock."""
        pid = roles_of(self._process)[f"worker-{rank}"].pid
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def close(self) -> None:
        """End it, and wait until it has."""
        if not self.over:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(LIMIT_S)


def measure(contender: str) -> dict[str, Any]:
    """One run: seconds as the module's docstring has them, and how many iterations were made again."""
    with tempfile.TemporaryDirectory(prefix="dx-stigmergy-loss-") as name:
        folder = Path(name)
        config = config_of(contender, folder)
        ranks = list(range(len(config.cluster.workers)))
        job = Job(config, folder)
        jobs = [job]
        try:
            job.wait_until(lambda: min(job.marks(ranks)) >= KILLED_AT, f"iteration {KILLED_AT}")
            struck_s = job.kill_worker(STRUCK)
            reached = max(job.marks(ranks))
            ended_s, began_s, repeated = struck_s, struck_s, 0
            if config.elastic.min_workers is None:
                ended_s = job.wait_until(lambda: job.over, "the end of the job")
                resume = job.run.newest_checkpoint()
                assert resume is not None, "one was written before the signal"
                again = Job(config, folder, resume)
                jobs.append(again)
                began_s = again.wait_until(lambda: min(again.marks(ranks)) > 0, "the first iteration")
                repeated = reached - again.first_iteration
            last, there = jobs[-1], [rank for rank in ranks if len(jobs) > 1 or rank != STRUCK]
            further_s = last.wait_until(lambda: min(last.marks(there)) > reached, f"iteration {reached + 1}")
        finally:
            for one in jobs:
                one.close()
    seconds = (ended_s - struck_s, began_s - ended_s, further_s - began_s, further_s - struck_s)
    return {
        "contender": contender,
        **{name: round(value, 3) for name, value in zip(PARTS, seconds, strict=True)},
        "repeated": repeated,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians of the runs of each contender, in Markdown."""
    found = []
    for contender in CONTENDERS:
        mine = [row for row in rows if row["contender"] == contender]
        medians = {name: statistics.median(float(row[name]) for row in mine) for name in (*PARTS, "repeated")}
        ends = contender == "stigmergy"
        together = [float(row["together_s"]) for row in mine]
        found.append(
            {
                "job": contender if ends else f"{contender}, elastic",
                **{name.removesuffix("_s"): f"{medians[name]:.1f} s" if ends else "" for name in PARTS[:3]},
                "together": f"{medians['together_s']:.1f} s ({min(together):.1f} to {max(together):.1f})",
                "iterations made again": f"{medians['repeated']:.0f}",
            }
        )
    return markdown(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--runs", type=int, default=3, help="of each job (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    args = parser.parse_args()
    rows = []
    with exclusive_machine(lambda: print("a grid runs on this machine, and would slow this down; waiting")):
        for _ in range(args.runs):
            for contender in CONTENDERS:
                rows.append(measure(contender))
                print(rows[-1], flush=True)
    write_csv(args.out / "stigmergy-loss.csv", rows)
    told = f"`python -m benchmarks.studies.stigmergy_loss --runs {args.runs}` on {where()}. Real BytePS."
    block = f"{told} Medians, and the smallest and the largest:\n\n{table(rows)}\n"
    update_page(args.out / "stigmergy.md", None, block)
    print(block)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
