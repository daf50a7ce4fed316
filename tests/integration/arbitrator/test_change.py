"""A worker becomes slow in the middle of a window, over real BytePS: all workers end that window together.

Both workers tell made-up times, so that nothing else on the machine can change what they see.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.testbed.byteps_cluster import Cluster
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.observe.change import LASTING

SLOW_FROM = 11  # iteration; the second window begins with iteration 4
WORKER = """
from tests.integration.arbitrator.test_change import SLOW_FROM
from tests.integration.training.small_training import TorchTraining

training = TorchTraining(0, [])
run = training.run
for inputs, targets in run.batches(iterations=30):
    slow = run.iteration > SLOW_FROM  # in the iteration before, which the clock still shows: then worker 0 waits
    run.training.observer.watch.lasted_s = 0.2 if slow else 0.02
    run.training.observer.watch.waited_s = (0.18 if slow and run.rank == 0 else 0.001,)
    training.step(inputs, targets)
run.close()
print("null")
"""


@pytest.mark.timeout(120)
def test_all_workers_end_the_window_in_which_one_becomes_slow(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"cluster": {"workers": ({"batch": 4},) * 2}, "batch": {"min": 1}, "mode": "observe", "window": 15}
    )
    file = tmp_path / "cluster.yaml"
    file.write_text(dump_config(config))
    folder = RunFolder(tmp_path)
    folder.workers_dir.mkdir()
    with Cluster(WORKER, env={"DYNAMIX_CONFIG": str(file), "DYNAMIX_RUN_DIR": str(tmp_path)}) as cluster:
        cluster.results(timeout_s=90)
    lines = [[json.loads(line) for line in folder.worker_file(rank).read_text().splitlines()] for rank in (0, 1)]
    windows = [[(one["first_iteration"], one["iterations"]) for one in own if one["kind"] == "window"] for own in lines]
    assert windows[0] == windows[1] == [(1, 3), (SLOW_FROM, LASTING), (SLOW_FROM + LASTING, 15)]
