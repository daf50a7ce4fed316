"""Every sample once per pass over a Gluon loader, on two real workers, with changing plans and a resume in mid-pass."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed.byteps_cluster import Cluster
from tests.forked import write_cluster_file
from tests.integration.training.small_training import NEEDS_MXNET

SCRIPT = "from tests.cases.scripts.mxnet_loaders import main; main()"
NONE: dict[str, Any] = {}
PROCESSES = {"num_workers": 2}
THREADS = {"num_workers": 2, "thread_pool": True}
CASES = [
    # (samples, order, options of each worker's loader)
    (120, "shuffle", (PROCESSES, PROCESSES)),  # made before the data plane is there; all others beside it
    (97, "in order", (NONE, NONE)),
    (83, "buckets", (PROCESSES | {"prefetch": 1}, NONE)),
    (120, "shuffle", (NONE, PROCESSES | {"prefetch": 0})),
    (75, "buckets", (THREADS, PROCESSES | {"prefetch": 9})),
    (101, "in order", (PROCESSES | {"prefetch": 1}, THREADS | {"prefetch": 4})),
]

pytestmark = NEEDS_MXNET


@pytest.mark.timeout(180)
def test_every_sample_once_per_pass(tmp_path: Path) -> None:
    file = write_cluster_file(
        tmp_path, (4, 4), comm="byteps", mode="observe", lr_rule="none", metrics={"network": "off"}, bucket_bytes=1
    )  # a bucket for each parameter, also on a worker without samples
    cases = [{"length": length, "order": order, "options": options} for length, order, options in CASES]
    variables = {"DYNAMIX_CONFIG": str(file), "TEST_LOADERS": json.dumps(cases)}
    with Cluster(SCRIPT, workers=2, env=variables) as running:
        workers = running.results(timeout_s=150)
    for number, (length, *case) in enumerate(CASES):
        told = [worker[number] for worker in workers]
        assert told[0]["weight"] == told[1]["weight"], case
        for epoch in range(2):
            seen = [one[part][epoch] for one in told for part in ("begun", "gone_on")]
            assert sorted(chain(*chain(*seen))) == list(range(length)), (case, epoch)
            iterations = [sum(len(one[part][epoch]) for part in ("begun", "gone_on")) for one in told]
            assert iterations[0] == iterations[1], (case, epoch)
        sizes = {len(batch) for one in told for part in ("begun", "gone_on") for batch in chain(*one[part])}
        assert len(sizes) > 2, f"{case}: the plans were not applied"
