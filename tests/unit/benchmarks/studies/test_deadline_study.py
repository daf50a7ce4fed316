"""The study of the deadline: who runs where, and what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies.clusters import deadline


def test_quiet_clusters_need_no_variants_and_those_of_the_bed_have_its_times() -> None:
    cells = deadline.cells_of(quick=False)
    clusters = {cell.scenario.name: cell.scenario for cell in cells}
    contenders = {name: {cell.name for cell in cells if cell.scenario.name == name} for name in clusters}
    changing = {name for name, one in contenders.items() if one == set(deadline.CONTENDERS)}
    assert changing == {"bed-spot", "bed-bursts", "bed-hl-schedule", "recurring", "recurring-nothing-hidden"}
    assert all(contenders[name] == set(deadline.QUIET) for name in clusters.keys() - changing)
    assert len({cell.key for cell in cells}) == len(cells)
    slow, _, fast = clusters["bed-h-level-4"].each_worker
    assert slow.per_sample_s == pytest.approx(0.923 / 0.231 * fast.per_sample_s)


@pytest.mark.timeout(120)
def test_it_keeps_its_runs_and_tells_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["--quick", "--jobs", "1", "--out", str(tmp_path)]
    deadline.main(command)
    text = (tmp_path / "deadline-quick.md").read_text()
    assert text.count("| bed-homogeneous | ") == 2 and text.count("| recurring | ") == 4
    assert "| off / oracle | 1.15 / oracle | off / oracle, every iteration |" in text
    assert (tmp_path / "deadline-quick.png").exists()
    monkeypatch.setattr(deadline, "run", lambda cell: pytest.fail(f"{cell.title} runs again"))
    deadline.main(command)
