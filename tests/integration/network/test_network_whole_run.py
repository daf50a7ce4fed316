"""A whole run between hosts, one link with loss and one slow link: what the policy gets, and the diagnosis."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed import Bed
from benchmarks.testbed.byteps_cluster import BedCluster
from dynamix_ps.config import variables
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_folder import RunFolder
from worker_hooks.observe.window import FIRST_WINDOW

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]

WINDOWS, WINDOW = 8, 5
IN_WINDOWS = FIRST_WINDOW + (WINDOWS - 1) * WINDOW
ITERATIONS = 1 + IN_WINDOWS + 1  # the first is in no window, and the last completes the one before
AT_START = 1  # rank 0's state goes to all
MOST_MEASURING_BYTES = 64e6  # of links without a limit, by echoes of up to 16 MB
TRAIN = f"""
    import torch
    import dynamix_ps.torch as dynamix

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(4000, 500), torch.randint(0, 4, (4000,)))
    model = torch.nn.Sequential(torch.nn.Linear(500, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 4))
    run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
    for inputs, targets in run.batches(iterations={ITERATIONS}):
        run.optimizers[0].zero_grad()
        run.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        run.optimizers[0].step()
    run.close()
    print("{{}}")
"""


class WholeRun(BedCluster):
    """Scheduler with arbitrator, server and workers with all hooks."""

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        if not role.startswith("worker-"):
            kind = role.partition("-")[0]
            command = [sys.executable, "-m", f"server_hooks.{kind}"]
        options["env"][variables.ROLE_NAME] = role
        return super()._popen(role, command, **options)


def lines(file: Path, kind: str) -> list[Mapping[str, Any]]:
    return [line for line in map(json.loads, file.read_text().splitlines()) if line["kind"] == kind]


def test_a_lossy_link_and_a_narrow_link_are_told_apart(bed: Bed, probe_socket: str, tmp_path: Path) -> None:
    bed.set_link("worker-1", dataclasses.replace(bed.link("worker-1"), up_loss=0.01))
    bed.set_link("worker-2", dataclasses.replace(bed.link("worker-2"), up_bits_per_s=1e8))
    config = Config.model_validate(
        {
            "cluster": {"workers": ({"batch": 32},) * 3, "insecure": True},
            "window": WINDOW,
            "mode": "observe",
            "metrics": {"interval_s": 0.5},
        }
    )
    folder = RunFolder(tmp_path)
    folder.config_file.write_text(dump_config(config))
    environ = {
        variables.CONFIG: str(folder.config_file),
        variables.RUN_DIR: str(folder.path),
        variables.RUN_ID: "whole-run",
        variables.TOKEN: "secret",
        variables.ARBITRATOR: f"{bed.address('server')}:7117",
        variables.PROBE: probe_socket,
    }
    with WholeRun(bed, TRAIN, 3, lambda pid: None, environ) as cluster:
        cluster.results(90.0)
        retransmitted = {rank: bed.snmp(f"worker-{rank}").retransmitted_segments for rank in range(3)}

    for rank in range(3):
        windows = lines(folder.worker_file(rank), "window")
        assert len(windows) == WINDOWS
        assert {window["network_source"] for window in windows} == {"ebpf"}
        assert not lines(folder.worker_file(rank), "degraded")
        assert sum(window["iterations"] for window in windows) == IN_WINDOWS
        pushed = sum(window["bytes_pushed"] for window in windows) / IN_WINDOWS * (ITERATIONS + AT_START)
        (last,) = lines(folder.role_file(f"worker-{rank}"), "role")[-1:]
        measuring = sum(flow["bytes_out"] for flow in last["flows"]) - pushed
        assert -0.02 * pushed < measuring < MOST_MEASURING_BYTES
        assert not [flow for flow in last["flows"] if flow["remote"].endswith(":7117")], (
            "reports are no training traffic"
        )
        seen = sum(flow["retransmits"] for flow in last["flows"])
        at_the_end = retransmitted[rank] / ITERATIONS  # the sum that announces the end comes after the last report
        assert seen == pytest.approx(retransmitted[rank] - at_the_end, rel=0.02, abs=5 + at_the_end)
    assert retransmitted[1] > 100

    links = [line["links"] for line in lines(folder.journal_file, "links")]
    assert WINDOWS - 1 <= len(links) <= WINDOWS  # on a busy machine the end of the run overtakes the last
    blamed = Counter((link["rank"], link["slow"]) for window in links for link in window if link["slow"])
    assert blamed[2, "link"] >= WINDOWS / 2, blamed
    assert sum(blamed.values()) - blamed[2, "link"] <= WINDOWS / 4, blamed
    differences = [link["push_difference"] for window in links for link in window]
    known = [abs(difference) for difference in differences if difference is not None]
    assert known and statistics.median(known) < 0.1
    for server in lines(folder.journal_file, "links")[-1]["servers"]:
        assert server["source"] == "ebpf"
