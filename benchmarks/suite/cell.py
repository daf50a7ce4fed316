"""One cell: a scenario, a workload, a contender and a seed become one real training, and a result file.

    python -m benchmarks.suite.cell h-level-4 fashion-cnn ppo 1 --out bench-runs/mine/cells

The run itself is an ordinary `dynamix launch`, placed by placement.py; its run folder is kept only with --keep. A
contender over DDP leaves no run folder (ddp_job.py).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.suite import ddp_job
from benchmarks.suite.cleanup import cell_folder
from benchmarks.suite.contenders import Contender, contender
from benchmarks.suite.machine_speed import machine_gflop_per_s
from benchmarks.suite.placement import Scheduled, placed_for
from benchmarks.suite.result_of_run import divergence, measured, over_ddp
from benchmarks.suite.results import CellName, without_run, write_result
from benchmarks.suite.scenario import Scenario, load_scenario
from benchmarks.suite.workloads import Workload, load_workload
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Metrics, Timeouts, WorkerSection
from dynamix_ps.errors import JobFailed
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.emulation.cpu_quota import find_controller
from dynamix_ps.launch.job.run import run_job
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.terminal import make_console

# The C library gives memory back after an iteration or keeps it, by what was asked for before; giving it back costs
# up to a third of an iteration. Here it keeps it, so that cells differ in their batch sizes alone.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
}


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("scenario", "workload", "contender"):
        parser.add_argument(part)
    parser.add_argument("seed", type=int)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the result")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folder below this one")
    args = parser.parse_args()
    name = CellName(args.scenario, args.workload, args.contender, args.seed)
    scenario, workload, chosen = load_scenario(name.scenario), load_workload(name.workload), contender(name.contender)
    args.out.mkdir(parents=True, exist_ok=True)
    with run_folder(args.keep) as base:
        return run_cell(name, scenario, workload, chosen, base, args.out)


@contextmanager
def run_folder(keep: Path | None = None) -> Iterator[Path]:
    """Where a cell runs: in the folder given, or in one that is gone afterwards, also after SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folder and test bed go, too
    base = keep or cell_folder()
    try:
        yield base
    finally:
        if keep is None:
            shutil.rmtree(base, ignore_errors=True)


def run_cell(name: CellName, scenario: Scenario, workload: Workload, chosen: Contender, base: Path, out: Path) -> int:
    """Train and write the result, also of a training that diverged or was cut off at its limit; 0.

    Otherwise the exit code of the launcher.

    Raises:
        DynamixError: the cell could not even begin.
    """
    speed = machine_gflop_per_s()
    with placed_for(scenario, workload.limit_s, "gloo" if chosen.over_ddp else workload.comm) as placement:
        config = config_of(name, scenario, workload, chosen, base, placement)
        if chosen.over_ddp:
            command = ddp_job.command_of(workload, chosen, config.initial_sizes(), name.seed)
            told = ddp_job.train(command, config, placement)
            write_result(out, over_ddp(name, told, config, workload, placement.network, speed))
            return 0
        code = run_job(config, sys.argv, None, make_console(), placement)
        if code == JobFailed.exit_code and (why := divergence(base / "latest")):
            write_result(out, without_run(name, "diverged", why, workload))
        elif code and not placement.out_of_time:
            return code
        else:
            folder = RunFolder.open(base / "latest")
            write_result(out, measured(name, folder, config, workload, placement.network, speed))
    return 0


def config_of(
    name: CellName, scenario: Scenario, workload: Workload, chosen: Contender, base: Path, placement: Scheduled
) -> Config:
    """The cluster file of a cell."""
    n_workers = len(scenario.cores)
    # The learning rate is for the first sizes, whatever the policy: its rule applies to a fixed size as well.
    sizes = {"sizes": (chosen.batch,) * n_workers} if chosen.batch else {}
    first = chosen.first_sizes((workload.batch,) * n_workers, scenario.cores, workload.min, workload.max)
    return Config(
        name=str(name)[:64],
        run_dir=str(base),
        seed=name.seed,
        comm=workload.comm,
        cluster=Cluster(
            host=placement.host,
            wire=chosen.wire,
            servers=placement.servers,
            workers=tuple(
                WorkerSection(batch=size, speed=cores) for size, cores in zip(first, scenario.cores, strict=True)
            ),
        ),
        batch=BatchBounds(unit=workload.unit, min=workload.min, max=workload.max),
        window=workload.window,
        lr_rule=workload.lr_rule,
        emulation="cgroup" if scenario.schedule or find_controller().usable else "auto",
        target_accuracy=workload.thresholds[-1] if workload.metric == "accuracy" else None,
        policy=chosen.policy.model_copy(update=sizes),
        metrics=Metrics(tensorboard=False, prometheus_port=None),
        timeouts=Timeouts(),
        command=(*workload.command, "--lr-factor", str(chosen.lr_factor), "--seed", str(name.seed)),
        env=ENVIRONMENT,
    )


if __name__ == "__main__":
    sys.exit(main())
