"""The page of a run: what it says, that its curves are those of the tables, and how it behaves in a browser."""

from __future__ import annotations

import itertools
import json
import math
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dynamix_ps.cli.main import cli
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import BatchBounds, Config
from dynamix_ps.errors import UsageError
from dynamix_ps.report.page import run_page
from dynamix_ps.report.page.charts import Bars, Chart, ChartCurve, charts_of_run, drawn
from dynamix_ps.report.plots.history import read_history
from dynamix_ps.report.plots.series import of_all
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import compare_runs, write_report
from dynamix_ps.report.summary import Outcome
from dynamix_ps.run_record.run_folder import RunFolder
from tests.browser import Browser
from tests.unit.report.pages import charts_in, columns, words_of
from tests.unit.synthetic_run import START_S, append, config, evaluation, finished, started, whole_run, window

GOOD = Outcome(0, "all workers finished", "none")
LIMIT_BYTES = 2_000_000


def write(folder: RunFolder, given: Config | None = None, outcome: Outcome = GOOD) -> str:
    write_report(folder, given or config(3, target_accuracy=0.8), outcome, plots=False)
    return folder.report_html.read_text()


@pytest.fixture
def run(folder: RunFolder) -> RunFolder:
    whole_run(folder)
    Recorder(folder, config(3)).close()
    return folder


class TestCurves:
    def test_are_those_of_the_windows(self, run: RunFolder) -> None:
        charts = charts_in(write(run))
        assert list(charts) == [
            "Batch sizes",
            "Samples per second",
            "Loss of training over time",
            "Loss of training over samples",
            "Accuracy on the test set",
            "Time spent waiting for others",
            "Time per sample, first and last plan",
        ]
        for rank in range(3):
            rates = charts["Samples per second"]["curves"][rank + 1]
            rows = list(columns(run, rank, "time_s", "samples", "duration_s", "wait_s"))
            assert rates["name"] == f"worker {rank}"
            assert rates["x"] == pytest.approx([time_s - START_S for time_s, *_ in rows], abs=1e-3)
            assert rates["y"] == pytest.approx([samples / seconds for _, samples, seconds, _ in rows], rel=1e-5)
        rows = list(columns(run, 0, "global_samples", "duration_s", "global_loss"))
        of_all = charts["Samples per second"]["curves"][0]
        assert of_all["y"] == pytest.approx([samples / seconds for samples, seconds, _ in rows], rel=1e-5)
        over_time, over_samples = (charts[f"Loss of training over {of}"]["curves"][0] for of in ("time", "samples"))
        losses = pytest.approx([loss for *_, loss in rows], rel=1e-5)
        assert over_time["y"] == losses and over_samples["y"] == losses
        assert over_samples["x"] == list(itertools.accumulate(samples for samples, *_ in rows))

    def test_sizes_hold_until_the_next_plan_and_the_last_until_the_end(self, run: RunFolder) -> None:
        chart = charts_in(write(run))["Batch sizes"]
        end_s = read_history(run, config(3)).end_s
        for curve in chart["curves"]:
            assert (curve["y"][0], curve["y"][-1]) == (64, curve["y"][-2])
            assert curve["x"][-1] == pytest.approx(end_s, abs=1e-3)
        assert len(chart["marks"]) == 30

    def test_a_value_that_is_not_known_is_a_gap(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0), window(0, 1, global_loss=None), window(0, 2))
        assert charts_in(write(folder))["Loss of training over time"]["curves"][0]["y"] == [2.0, None, 0.666667]

    def test_a_window_counts_once_even_where_the_first_worker_has_gone(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0))
        append(folder.worker_file(1), started(1), window(1, 0), window(1, 1))
        samples = charts_in(write(folder))["Loss of training over samples"]["curves"][0]["x"]
        assert samples == [3 * 64 * 20, 2 * 3 * 64 * 20]

    def test_so_many_points_that_the_page_stays_small(self) -> None:
        n = 100_000
        times = [float(second) for second in range(n)]
        curve = ChartCurve("worker", times, [math.nan if at % 2 else float(at) for at in range(n)], 0)
        steps, line = drawn([Chart("", "", [curve], steps=True), Chart("", "", [curve])])
        assert line["together"] == 50
        assert line["curves"][0]["x"][:2] == [49.0, 99.0] and line["curves"][0]["x"][-1] == n - 1
        assert line["curves"][0]["y"][:2] == [24.0, 74.0], "the mean of what is known"
        assert steps["curves"][0]["y"][0] is None, "the last one"
        short = ChartCurve("worker", times[:200], times[:200], 0)
        many = [Chart("", "", [short] * 1000)] * 3
        assert len(json.dumps(drawn(many))) < LIMIT_BYTES

    def test_without_a_window_nothing_is_drawn_and_nothing_fails(self, folder: RunFolder) -> None:
        page = write(folder, outcome=Outcome(3, "BytePS is not installed", "none"))
        assert "exit code 3: BytePS is not installed" in words_of(page)
        assert all(not chart["curves"] for title, chart in charts_in(page).items() if title == "Batch sizes")
        bars = charts_of_run(read_history(folder, config(3)))[-1]
        assert isinstance(bars, Bars) and bars.rows == []


class TestWords:
    def test_what_happened_and_what_was_gained(self, run: RunFolder) -> None:
        words = words_of(write(run))
        assert "3 workers trained 115,200 samples in 600 iterations and" in words
        assert "and reached a test accuracy of" in words
        assert "With the batch sizes at its end it trains 1." in words and "samples/s of the first sizes" in words
        assert "Nobody: all workers and servers were there" in words
        assert "Nothing: everything worked as configured" in words

    def test_who_went_and_what_is_degraded(self, run: RunFolder) -> None:
        left = {"kind": "worker_left", "rank": 1, "time_s": START_S + 30, "iteration": 600, "workers": 2}
        append(run.worker_file(1), left)
        append(
            run.worker_file(0), {"kind": "degraded", "rank": 0, "time_s": 2.0, "what": "arbitrator", "detail": "gone"}
        )
        words = words_of(write(run))
        assert "2 of 3 workers from iteration 600: worker 1 left" in words
        assert "arbitrator (worker-0): gone" in words

    def test_text_of_roles_stays_text(self, folder: RunFolder) -> None:
        hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
        failed = {"kind": "failed", "rank": 0, "time_s": 1.0, "error": hostile}
        measured = evaluation(3, 0.8, values={hostile: 1.0}, higher_is_better={})
        append(folder.worker_file(0), started(0), measured, failed)
        page = write(folder, outcome=Outcome(4, hostile, hostile))
        assert hostile not in page and "<img" not in page
        assert page.count("<script") == 2

    def test_values_of_the_environment_are_not_passed_on(self, run: RunFolder) -> None:
        page = write(run, config(3, env={"API_KEY": "hunter2"}))
        assert "API_KEY: (not shown)" in page and "hunter2" not in page

    def test_a_page_that_cannot_be_made_is_degraded(self, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object) -> None:
            raise ValueError("no such chart")

        monkeypatch.setattr(run_page, "charts_of_run", broken)
        summary = write_report(run, config(3), GOOD, plots=False)
        assert summary["degraded"] == ["page (launcher): no report.html: ValueError: no such chart"]
        assert json.loads(run.summary_json.read_text()) == summary
        assert not run.report_html.exists()


@pytest.mark.slow
class TestInABrowser:
    @pytest.mark.parametrize("width", [390, 1280])
    def test_opens_from_disk_without_an_error_and_draws_every_curve(
        self, run: RunFolder, browser: Browser, width: int
    ) -> None:
        page = write(run)
        assert "http:" not in page.replace("http://www.w3.org/2000/svg", "") and "https:" not in page
        shown = browser.show(f"file://{run.report_html}", width)
        assert shown.console == []
        assert shown.dom.count("<svg") == 7
        assert ">nothing recorded<" not in shown.dom
        paths = [drawn.split("L") for drawn in re.findall(r'<path d="M([^"HV]*)"', shown.dom)]
        assert len(paths) == 4 + 2 + 1 + 3  # rates, losses, accuracy, waiting
        assert [len(points) for points in paths[:4]] == [30] * 4
        of_all = [float(point.split()[1]) for point in paths[0]]
        rates = charts_in(page)["Samples per second"]["curves"][0]["y"]
        order = sorted(range(30), key=lambda at: rates[at])
        heights = [of_all[at] for at in order]
        assert heights == sorted(heights, reverse=True), "a higher rate is further up"
        assert of_all[order[0]] > of_all[order[-1]]

    def test_the_pointer_shows_values(self, run: RunFolder, browser: Browser, tmp_path: Path) -> None:
        page = write(run)
        script = (
            "const box = document.querySelectorAll('figure svg')[1], seen = box.getBoundingClientRect();"
            "box.dispatchEvent(new PointerEvent('pointermove', {clientX: seen.right - 1, clientY: seen.top + 50}));"
        )
        pointed = tmp_path / "pointed.html"  # the policy of the page forbids scripts that are not ours
        pointed.write_text(re.sub(r"<meta http-equiv.*?>", "", page).replace("</body>", f"<script>{script}</script>"))
        dom = browser.show(f"file://{pointed}").dom
        tip = re.search(r'<div class="tip" style="[^"]*">(.*?</div>)</div>', dom)
        assert tip
        last = charts_in(page)["Samples per second"]["curves"][1]["y"][-1]
        assert f"{float(f'{last:.4g}'):,g}" in words_of("<body>" + tip[1])

    def test_prints_on_two_pages(self, run: RunFolder, browser: Browser) -> None:
        write(run)
        assert browser.pages_of_print(f"file://{run.report_html}") == 2


def test_a_long_run_of_many_workers_stays_below_two_megabytes(folder: RunFolder) -> None:
    for rank in range(40):
        lines = (window(rank, number, 64 + number % 7, time_s=START_S + number) for number in range(150))
        append(folder.worker_file(rank), started(rank), *lines, finished(rank, 3000, 1000, 150.0))
    assert len(write(folder, config(40))) < LIMIT_BYTES


class TestTwoRuns:
    def other(self, base: Path, **settings: Any) -> RunFolder:
        """A run of five workers that has ended."""
        folder = RunFolder.create(base, "other", datetime(2026, 1, 3, tzinfo=timezone.utc), "cd34")
        folder.config_file.write_text(dump_config(config(5, seed=7, **settings)))
        whole_run(folder, workers=5)
        return folder

    def test_curves_of_both_and_what_differs(self, run: RunFolder, tmp_path: Path) -> None:
        run.config_file.write_text(dump_config(config(3)))
        before = sorted(file.name for file in run.path.iterdir())
        page = compare_runs(run, self.other(tmp_path))
        assert page == tmp_path / "other-20260103T000000Z-cd34" / "compared-with-demo-20260102T030405Z-ab12.html"
        assert sorted(file.name for file in run.path.iterdir()) == before
        charts = charts_in(page.read_text())
        for title, name in (("Samples per second", "samples_per_s"), ("Loss of training over samples", "loss")):
            first, second = charts[title]["curves"]
            assert [first["name"], second["name"]] == ["first", "second"]
            total = of_all(read_history(run, config(3)))
            assert first["y"] == pytest.approx(getattr(total, name), rel=1e-5)
        assert charts["Global batch"]["curves"][1]["y"] == [5 * 64] * 30
        words = words_of(page.read_text())
        assert "The second run: other-20260103T000000Z-cd34." in words
        assert "The second run trains" in words and "times the samples/s of the first" in words
        assert "seed 0 7" in words
        assert "cluster.workers.4.batch - 64" in words and "window" not in words.partition("Settings that differ")[2]

    def test_of_one_metric_only_those_that_have_it(self, run: RunFolder, tmp_path: Path) -> None:
        other = self.other(tmp_path)
        append(run.worker_file(0), evaluation(3, 0.0, values={"mae": 3.0}, higher_is_better={"mae": False}))
        charts = charts_in(compare_runs(other, run).read_text())
        assert len(charts["Accuracy on the test set"]["curves"]) == 2

    def test_what_cannot_be_compared_is_refused(self, run: RunFolder, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be compared with itself"):
            compare_runs(run, run)
        tokens = self.other(tmp_path, batch=BatchBounds.model_validate({"unit": "tokens"}))
        with pytest.raises(UsageError, match=r"batch sizes in samples, .* in tokens"):
            compare_runs(run, tokens)

    def test_the_command(self, run: RunFolder, tmp_path: Path) -> None:
        other = self.other(tmp_path)
        arguments = ["report", str(run.path), str(other.path)]
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.output == f"page: {other.path}/compared-with-{run.path.name}.html\n"
        assert CliRunner().invoke(cli, [*arguments, "-c", "file.yaml"]).exit_code == 2

    @pytest.mark.slow
    def test_in_a_browser(self, run: RunFolder, tmp_path: Path, browser: Browser) -> None:
        shown = browser.show(f"file://{compare_runs(run, self.other(tmp_path))}")
        assert shown.console == []
        assert len(re.findall(r'<path d="M', shown.dom)) == 2 * 6
