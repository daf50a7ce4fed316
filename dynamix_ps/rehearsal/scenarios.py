"""The cluster that a cluster file and a scenario describe together.

The cluster file says how many workers there are, and all about batch sizes and policies. The scenario says how fast
workers and links are, and how that changes. Without a scenario, the speeds are those of the cluster file.
"""

from __future__ import annotations

from pathlib import Path

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.sim.calibration import calibrate
from dynamix_ps.sim.calibration.series import series_of
from dynamix_ps.sim.recorded import SUFFIX, read_run
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import SimulatedWorker

OF_CLUSTER_FILE = "cluster-file"


def scenario_for(config: Config, name: str | None) -> Scenario:
    """The scenario of a rehearsal of this cluster.

    Args:
        name: of a scenario that ships, or of a scenario file; or a run folder or recording, to which the simulator is
            calibrated. None: the speeds of the cluster file.

    Raises:
        ConfigError: there is no such scenario, or its file is wrong.
        UsageError: the recorded run does not tell enough, or counts in another unit.
    """
    found = _of_cluster_file(config) if name is None else _named(config, name)
    workers = len(config.cluster.workers)
    if found.n_workers != workers:
        found = found.with_workers(workers)
    architecture = "ring" if config.data_plane.is_ring else "ps"
    return found.model_copy(update={"architecture": architecture})


def first_compute_s(config: Config, scenario: Scenario) -> tuple[float, float]:
    """Seconds that the fastest and the slowest worker compute for their first batches."""
    each = zip(scenario.each_worker, config.initial_sizes(), strict=True)
    times_s = [worker.fixed_s + worker.per_sample_s * size for worker, size in each]
    return min(times_s), max(times_s)


def _of_cluster_file(config: Config) -> Scenario:
    """Workers as fast as `speed` says, relative to a worker with the simulator's defaults."""
    whole = SimulatedWorker()
    workers = tuple(
        SimulatedWorker(fixed_s=whole.fixed_s / worker.speed, per_sample_s=whole.per_sample_s / worker.speed)
        for worker in config.cluster.workers
    )
    return Scenario(name=OF_CLUSTER_FILE, workers=workers)


def _named(config: Config, name: str) -> Scenario:
    path = Path(name)
    if not (path.is_dir() or name.endswith(SUFFIX)):
        return load_scenario(name)
    run = read_run(path)
    if run.config.batch.unit != config.batch.unit:
        raise UsageError(
            f"--scenario {name}: the sizes of this run count {run.config.batch.unit}, those of the cluster file "
            f"{config.batch.unit}; give a run whose batch.unit is that of the cluster file"
        )
    return calibrate.calibrate_times(calibrate.cluster_of(run.name[:64], [run]), [series_of(run)])
