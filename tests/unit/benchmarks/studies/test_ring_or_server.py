"""The comparison of ring and parameter server: its cells, what the links alone take, and its page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.bed import ring_or_server
from benchmarks.studies.bed.ring_or_server import FULL, QUICK, SEED, links_s, pairs, write_page
from benchmarks.studies.bed.ring_or_server_cell import (
    ADAPTIVE,
    CLUSTERS,
    EQUAL,
    PLANES,
    RING,
    SIZE,
    SLOW_WORKER,
    WORKERS,
    cluster_of,
    contender_of,
    training_of,
)
from benchmarks.suite.cell import config_of
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.placement import Scheduled
from benchmarks.suite.results import CellName, CellResult, CurvePoint, PlanPoint, WorkerTimes
from benchmarks.suite.tables import write_tables
from dynamix_ps.config.rules import findings
from dynamix_ps.policy.registry import make_policy
from tests.unit.benchmarks.suite.made_up_cells import made_up

MINUTES, START_S = 25, 14.0  # of the whole comparison; what a run takes besides its training
ITERATION_S = {EQUAL: 0.2, ADAPTIVE: 0.1}


def name_of(cluster: str, plane: str, sizes: str = EQUAL) -> CellName:
    return CellName(cluster, plane, sizes, SEED)


def result(name: CellName) -> CellResult:
    per_s = WORKERS * SIZE / ITERATION_S[name.contender]
    return dataclasses.replace(
        made_up(name.contender, 10.0, seed=name.seed, scenario=name.scenario, workload=name.workload),
        curve=tuple(CurvePoint(float(second), round(per_s * second), 0.0, 0.5, 1.0) for second in range(1, 25)),
        sizes=(PlanPoint(0.0, (SIZE,) * WORKERS), PlanPoint(3.0, (32, 48, 64, 112))),
        workers=tuple(WorkerTimes(rank, 0.5, 0.1 * (rank + 1), 0.1, 0.0) for rank in range(WORKERS)),
    )


def test_every_cluster_meets_every_plane_with_both_sizes_one_after_the_other() -> None:
    cells = FULL.cells()
    assert len(cells) == len(set(cells)) == len(CLUSTERS) * len(PLANES) * 2 == 40
    assert [cell.contender for cell in cells] == [EQUAL, ADAPTIVE] * (len(cells) // 2)
    assert all(cells[place].workload == cells[place + 1].workload for place in range(0, len(cells), 2))
    assert len(cells) * (FULL.span.until_s + START_S) <= MINUTES * 60
    quick = QUICK.cells()
    assert {cell.workload for cell in quick} == {RING, "servers-0"} and set(quick) <= set(cells)


@pytest.mark.parametrize("name", FULL.cells(), ids=str)
def test_every_cell_is_a_cluster_file_that_can_run(name: CellName, tmp_path: Path) -> None:
    cluster, training = cluster_of(name), training_of(name, 18.0)
    placement = Scheduled(cluster, 10.0)
    placement.servers = cluster.placed_servers
    config = config_of(name, cluster, training, contender_of(name), tmp_path, placement)
    assert not list(findings(config))
    make_policy(config, WORKERS, np.random.default_rng(0))
    assert config.initial_sizes() == (SIZE,) * WORKERS
    assert config.comm == ("gloo" if name.workload == RING else "byteps")
    own = [host for host in cluster.hosts if host.startswith("server-")]
    assert len(own) == (0 if name.workload == RING else int(name.workload[-1]))
    assert set(own) <= set(cluster.links), "an extra server has a link like a worker's"
    slow = {host for host, link in cluster.links.items() if link.up_mbit == 40.0}
    assert slow == ({f"worker-{SLOW_WORKER}"} if name.scenario.startswith("slow-link") else set())
    assert sum(cluster.cores) == pytest.approx(1.5)


def test_links_alone_take_what_the_formulas_of_ring_and_servers_say() -> None:
    """2 (n-1)/n for a ring, and 2 n (n-1) / (n^2 + k n - 2 k) for k extra servers (Jiang et al., OSDI 2020)."""
    ring = links_s(name_of("equal-links-equal", RING))
    assert ring == pytest.approx(1.5 * 4 * 215_370 * 8 / 100e6)
    found = [links_s(name_of("equal-links-mixed", plane)) / ring for plane in PLANES]
    assert found == pytest.approx([1, 1, 24 / 18 / 1.5, 24 / 20 / 1.5, 24 / 22 / 1.5])
    slow = links_s(name_of("slow-link-equal", RING))
    assert slow == pytest.approx(2.5 * ring)
    assert links_s(name_of("slow-link-equal", "servers-0")) == pytest.approx(slow / 1.5), "it serves nothing"
    assert links_s(name_of("slow-link-equal", "servers-3")) == pytest.approx(slow / 1.5)


def test_a_pair_needs_both_runs() -> None:
    results = {name: result(name) for name in FULL.cells()}
    found = list(pairs(FULL, results))
    assert len(found) == 20
    assert found[0].equal_s == pytest.approx(0.2) and found[0].ratio == pytest.approx(0.5)
    assert found[0].exchange == pytest.approx((0.25, 0.25)) and found[0].sizes == (32, 48, 64, 112)
    del results[name_of(CLUSTERS[0], RING, ADAPTIVE)]
    assert next(one.plane for one in pairs(FULL, results)) == "servers-0"


def test_adaptive_sizes_hold_the_global_batch() -> None:
    policy = contender_of(name_of(CLUSTERS[0], RING, ADAPTIVE)).policy
    assert policy.options["without"] == "batch" and policy.options["policy"] == {"name": "ppo"}
    assert contender_of(name_of(CLUSTERS[0], RING)).batch == SIZE


def test_the_page_has_a_row_per_pair_and_a_panel_per_cluster(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    results = {name: result(name) for name in FULL.cells()}
    found = list(pairs(FULL, results))
    text = write_page(tmp_path, FULL, results, found).read_text()
    assert "40 of 40 runs on one of two cores, at 31 to 31 GFLOP/s" in text
    assert "| `slow-link-mixed` | `ring` | 200 | 100 | **0.50** | 258 | 25 % -> 25 % |" in text
    figure = Figure()
    ring_or_server.draw_pairs(figure, found)
    assert [axes.get_title() for axes in figure.axes] == list(CLUSTERS)


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = GridFolder(tmp_path / QUICK.stem)
    folder.path.mkdir()
    write_tables(folder.path, [result(name) for name in QUICK.cells()[:3]])
    file = tmp_path / "figures.json"
    assert ring_or_server.main(["--quick", "--out", str(tmp_path), "--json", str(file), "--limit-s", "-1"]) == 0
    assert "1 runs are left" in capsys.readouterr().out
    shown = json.loads(file.read_text())
    assert (shown["runs"], shown["of"], [one["plane"] for one in shown["pairs"]]) == (3, 4, [RING])
