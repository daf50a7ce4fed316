import json
import math
from typing import Any

import pytest
from matplotlib.figure import Figure

from dynamix_ps.config.schema import BatchBounds
from dynamix_ps.report.plots import panels, panels_measured, plots, series
from dynamix_ps.report.plots.history import read_history
from dynamix_ps.report.summary import Outcome, write_summary
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import (
    START_S,
    WINDOW,
    append,
    config,
    evaluation,
    link,
    links,
    measured,
    plan_applied,
    started,
    whole_run,
    window,
)

NAMES = [f"{name}.png" for name in plots.PLOTS]
PNG = b"\x89PNG\r\n\x1a\n"


def assert_all_drawn(folder: RunFolder) -> None:
    drawn = plots.draw_plots(folder, config(target_accuracy=0.8))
    assert [path.name for path in drawn] == NAMES
    for path in drawn:
        assert path.read_bytes().startswith(PNG)
        assert path.stat().st_size > 5000
    assert not folder.events_file.exists()  # nothing went wrong


@pytest.mark.slow
def test_whole_run(folder: RunFolder) -> None:
    whole_run(folder)
    assert_all_drawn(folder)


def test_a_run_without_a_window_or_an_evaluation_has_no_pictures(folder: RunFolder) -> None:
    assert plots.draw_plots(folder, config()) == []
    append(folder.worker_file(0), started(0))
    assert plots.draw_plots(folder, config()) == []
    append(folder.worker_file(0), evaluation(3, 0.8))
    assert_all_drawn(folder)


def test_one_window_and_no_evaluation(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0, loss=None))
    assert_all_drawn(folder)


@pytest.mark.slow
def test_more_workers_than_colours(folder: RunFolder) -> None:
    whole_run(folder, windows=4, workers=18)
    assert_all_drawn(folder)


def test_damaged_lines_are_left_out(folder: RunFolder) -> None:
    whole_run(folder, windows=3)
    append(folder.worker_file(0), {"kind": "window", "rank": 0, "time_s": START_S}, {"kind": "evaluation", "rank": 0})
    assert_all_drawn(folder)


def test_a_run_without_accuracy_shows_what_it_has(folder: RunFolder) -> None:
    errors = {"values": {"mae": 3.0}, "higher_is_better": {"mae": False}}
    append(folder.worker_file(0), started(0), window(0, 0), evaluation(3, 0.0, **errors))
    axes = Figure().subplots()
    panels.evaluation(axes, read_history(folder, config(1, target_accuracy=0.8)))
    assert axes.get_ylabel() == "test mae (lower is better)"
    assert [list(line.get_ydata()) for line in axes.lines] == [[3.0]], "no target: that is one of accuracy"


def test_history_holds_what_happened(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0), plan_applied(0, 1, [80, 48]), evaluation(7, 0.5))
    append(folder.worker_file(1), started(1, time_s=START_S + 1), plan_applied(1, 1, [80, 48]))
    history = read_history(folder, config(2, target_accuracy=0.8))
    assert history.workers[0].batch_sizes == [64, 80]
    assert history.workers[0].batch_s == pytest.approx([0.0, 1.1])
    assert history.workers[1].batch_sizes == [64, 48]
    per_sample_us = 0.5e6 / (3 * 64 * WINDOW)  # 0.5 s over the samples of all workers
    assert history.workers[0].part_us["compute"] == [pytest.approx(per_sample_us)]
    assert history.main_metric is not None
    assert (history.main_metric.name, history.main_metric.elapsed_s, history.main_metric.values) == (
        "accuracy",
        [7.0],
        [0.5],
    )
    assert history.plan_s == pytest.approx([1.1])
    assert (history.target_accuracy, history.end_s) == (0.8, 7.0)
    assert folder.path.name in history.title


@pytest.mark.slow
def test_workers_that_come_and_go_and_the_others_after_them(folder: RunFolder) -> None:
    """Worker 0 is lost and enters again; meanwhile worker 1 tells what all have alike. Worker 2 leaves."""

    def of_window(rank: int, number: int, size: int) -> dict[str, Any]:
        return window(rank, number, size, **{**measured(rank, number), "noise_variance": 100.0 * (number + 1)})

    lost = {"kind": "lost", "time_s": START_S + 2.2, "role": "worker", "slot": 0, "reason": "it has exited"}
    server = lost | {"role": "server", "slot": 1}
    append(folder.journal_file, server, lost)
    again = started(0, 40, time_s=START_S + 4.0)
    windows = [of_window(0, number, 64 if number < 2 else 40) for number in (0, 1, 4)]
    append(folder.worker_file(0), started(0), *windows[:2], evaluation(1.5, 0.5), again, windows[2], evaluation(5, 0.7))
    sizes = {0: 64, 1: 64, 2: 96, 3: 96, 4: 70}
    of_plan = [plan_applied(1, 4, [40, 70, 0], time_s=START_S + 4.1)]
    told = [started(1), *(of_window(1, number, size) for number, size in sizes.items()), evaluation(3, 0.6, rank=1)]
    append(folder.worker_file(1), *told[:5], *of_plan, *told[5:])
    left = {"kind": "worker_left", "rank": 2, "time_s": START_S + 2.3, "iteration": 44, "workers": 2}
    append(folder.worker_file(2), started(2), of_window(2, 0, 64), left)
    history = read_history(folder, config(3))
    found = {rank: list(zip(one.batch_s, one.batch_sizes, strict=True)) for rank, one in history.workers.items()}
    assert found[0] == [(0.0, 64), (pytest.approx(2.2), 0), (4.0, 40)]
    assert found[1] == [(0.0, 64), (2.0, 96), (pytest.approx(4.1), 70)]
    assert found[2] == [(0.0, 64), (pytest.approx(2.3), 0)]
    assert history.plan_s == pytest.approx([4.1])
    assert history.noise_s == [1.0, 2.0, 3.0, 4.0, 5.0], "no window is missing"
    assert history.noise_scale == sorted(history.noise_scale)
    assert [one.values["accuracy"] for one in history.evaluations] == [0.5, 0.6, 0.7]
    assert_all_drawn(folder)


def test_medians_are_of_windows_within_the_plan(folder: RunFolder) -> None:
    times = [(0, 0.2, False), (0, 0.4, False), (0, 0.6, False), (1, 8.0, True), (1, 1.0, False), (2, 9.0, True)]
    for number, (version, compute_s, mixed) in enumerate(times):
        line = window(0, number, plan_version=version, compute_s=compute_s, flagged=mixed)
        append(folder.worker_file(0), line)
    worker = read_history(folder, config(2)).workers[0]
    assert [series.part_medians(worker, plan)["compute"] for plan in (0, 1, 2)] == pytest.approx(
        [1e6 * seconds / (3 * 64 * WINDOW) for seconds in (0.4, 1.0, 9.0)]
    )


def test_a_global_batch_that_grows_does_not_look_like_a_slow_down(folder: RunFolder) -> None:
    for number, factor in enumerate((1, 2)):
        times = {"compute_s": 0.5 * factor, "global_samples": 3000 * factor}
        append(folder.worker_file(0), window(0, number, **times))
    first, second = read_history(folder, config(1)).workers[0].part_us["compute"]
    assert first == pytest.approx(second)


def test_overview_shows_rates_and_loss_of_all(folder: RunFolder) -> None:
    for rank, size in ((0, 96), (1, 32)):
        lines = (window(rank, n, size, global_samples=128 * WINDOW, global_loss=[2.0, None, 1.0][n]) for n in range(3))
        append(folder.worker_file(rank), started(rank), *lines)
    figure = Figure()
    plots.PLOTS["overview"](figure, read_history(folder, config(2)))
    pictures = {axes.get_title(loc="left"): axes.get_lines() for axes in figure.axes}
    rates = {line.get_label(): list(line.get_ydata()) for line in pictures["Samples per second"]}
    assert rates == {"worker 0": [1920.0] * 3, "worker 1": [640.0] * 3, "all workers": [2560.0] * 3}
    (loss,) = pictures["Loss of training"]
    assert list(loss.get_ydata()) == pytest.approx([2.0, math.nan, 1.0], nan_ok=True)


def test_every_value_of_the_evaluations_has_a_picture(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), evaluation(1, 0.5), evaluation(2, 0.7), evaluation(3, 0.8))
    figure = Figure()
    plots.PLOTS["evaluation"](figure, read_history(folder, config(1)))
    accuracy, loss = figure.axes
    (line,) = accuracy.get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([20, 40, 60], [0.5, 0.7, 0.8])
    assert loss.get_ylabel() == "test loss (lower is better)"


class TestMeasured:
    """What is in the pictures of network, machine and gradients."""

    def draw(self, folder: RunFolder, name: str) -> Any:
        figure = plots._figure_type()()
        plots.PLOTS[name](figure, read_history(folder, config(2)))
        return figure

    def lines(self, axes: Any) -> dict[str, list[float]]:
        return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}

    def test_network(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0) | measured(0, 0), window(0, 1) | measured(0, 1))
        append(folder.worker_file(1), started(1), window(1, 0, rtt_s=0.004, retransmits_per_s=3.0))
        append(folder.journal_file, links(0, [link(0), link(1)]))
        figure = self.draw(folder, "network")
        push, pull, retransmits, rtt = figure.axes
        assert [axes.get_ylabel() for axes in figure.axes] == [
            "push (MB/s)",
            "pull (MB/s)",
            "retransmitted segments (1/s)",
            "round trip (ms)",
        ]
        expected = [measured(0, number)["push_bytes_per_s"] / 1e6 for number in (0, 1)]
        assert self.lines(push)["worker 0"] == pytest.approx(expected)
        assert list(self.lines(pull)) == ["worker 0"]  # unknown for worker 1: no line
        assert self.lines(retransmits) == {"worker 0": [2.0, 0.0], "worker 1": [5.0]}  # with the servers' side
        assert self.lines(rtt)["worker 1"] == [4.0]
        assert "source: ebpf (worker 0), none (worker 1)" in figure.get_suptitle()
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["worker 0", "worker 1"]

    @pytest.mark.parametrize(
        ("values", "title"),
        [
            ({"push_bytes_per_s": 14e3, "network_source": "ebpf"}, "Sums of gradients (through shared memory): "),
            ({}, "Sums of gradients (network not measured): "),
        ],
    )
    def test_sums_are_shown_where_they_cross_no_network(
        self, folder: RunFolder, values: dict[str, Any], title: str
    ) -> None:
        for rank in (0, 1):
            told = [window(rank, n, summed_bytes_per_s=2e7 + 1e6 * rank, **values) for n in (0, 1)]
            append(folder.worker_file(rank), started(rank), *told)
        figure = self.draw(folder, "network")
        (sums,) = figure.axes
        assert sums.get_ylabel() == "sums (MB/s)"
        assert self.lines(sums) == {"worker 0": [20.0, 20.0], "worker 1": [21.0, 21.0]}
        assert figure.get_suptitle().startswith(title)

    def test_one_worker_behind_a_network_is_enough_to_show_it(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0, push_bytes_per_s=1e3))
        append(folder.worker_file(1), started(1), window(1, 0, push_bytes_per_s=24e6))
        assert len(self.draw(folder, "network").axes) == 4

    def test_source_that_changed(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), started(0), *(window(0, n, network_source=s) for n, s in enumerate("xxy")))
        assert read_history(folder, config(2)).network_sources == "x then y"

    def test_system(self, folder: RunFolder) -> None:
        whole_run(folder, windows=3)
        cpu, throttled, memory = self.draw(folder, "system").axes
        assert set(self.lines(cpu)) == {"worker 0", "worker 1", "worker 2", "server-0", "scheduler"}
        assert self.lines(cpu)["server-0"] == pytest.approx([35.0] * 3)
        assert self.lines(cpu)["worker 2"] == pytest.approx([45.0] * 3)
        assert throttled.get_ylabel().endswith("(%)") and memory.get_ylabel().endswith("(GB)")

    def test_gpu_only_where_there_is_one(self, folder: RunFolder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0, gpu_utilisation=0.5))
        *_, gpu = self.draw(folder, "system").axes
        assert self.lines(gpu) == {"worker 0": [50.0]}

    def test_noise_scale_beside_the_global_batch(self, folder: RunFolder) -> None:
        values = {"noise_variance": 800.0, "noise_signal": 4.0, "global_samples": 20 * 192}
        append(folder.worker_file(0), started(0), window(0, 0, **values), window(0, 1, **values))
        scale, _ = self.draw(folder, "gradients").axes
        assert self.lines(scale)["global batch"] == [192.0, 192.0]
        assert self.lines(scale)["gradient noise scale (smoothed)"] == pytest.approx([200.0, 200.0])

    @pytest.mark.parametrize("name", ["network", "system", "gradients"])
    def test_nothing_recorded_is_said(self, folder: RunFolder, name: str) -> None:
        for axes in self.draw(folder, name).axes:
            assert [text.get_text() for text in axes.texts] == ["nothing recorded"]


def test_failing_plot_is_reported_and_the_others_are_drawn(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(figure: Any, history: Any) -> None:
        raise RuntimeError("no such font")

    monkeypatch.setitem(plots.PLOTS, "step_time", broken)
    append(folder.worker_file(0), started(0), window(0, 0))
    assert [path.name for path in plots.draw_plots(folder, config())] == [
        name for name in NAMES if name != "step_time.png"
    ]
    (event,) = [json.loads(line) for line in folder.events_file.read_text().splitlines()]
    assert (event["kind"], event["what"]) == ("degraded", "plots")
    assert "step_time.png" in event["detail"] and "no such font" in event["detail"]
    (line,) = write_summary(folder, config(), Outcome(0, "ok", "none"))["degraded"]
    assert line.startswith("plots (launcher): step_time.png: RuntimeError: no such font")


def test_missing_matplotlib_is_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    append(folder.worker_file(0), started(0), window(0, 0))
    assert plots.draw_plots(folder, config()) == []
    assert "matplotlib" in folder.events_file.read_text()


@pytest.mark.parametrize(("unit", "one"), [("samples", "sample"), ("tokens", "token"), ("padded_tokens", "token")])
def test_pictures_say_what_sizes_count(folder: RunFolder, unit: str, one: str) -> None:
    whole_run(folder, windows=3)
    chosen = config()
    history = read_history(folder, chosen.model_copy(update={"batch": BatchBounds.model_validate({"unit": unit})}))
    sizes, noise, split, overview = (Figure() for _ in range(4))
    panels.batch_sizes(sizes.subplots(), history)
    panels_measured.noise_scale(noise.subplots(), history)
    panels.split_by_plan(split.subplots(), history)
    plots.PLOTS["overview"](overview, history)
    assert sizes.axes[0].get_ylabel() == f"batch size per worker ({one}s)"
    assert noise.axes[0].get_ylabel() == f"{one}s"
    assert split.axes[0].get_xlabel().startswith(f"time per {one} of")
    assert f"Time per {one}, first and last plan" in [axes.get_title(loc="left") for axes in overview.axes]
