"""Calibration: fits find the simulator's parameters, runs are read completely, and errors are reported."""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.studies.bed import calibration, calibration_record
from benchmarks.studies.bed.calibration_record import RUNS
from dynamix_ps.cli.main import cli
from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim import recorded as recorded_module
from dynamix_ps.sim.calibration.calibrate import calibrate, scenario_of
from dynamix_ps.sim.calibration.fit_cost import predict_times
from dynamix_ps.sim.calibration.fit_training import Curve
from dynamix_ps.sim.calibration.prediction import Prediction, predict, time_to
from dynamix_ps.sim.calibration.series import Series, series_of
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.recorded import SUFFIX, RecordedDecision, RecordedRun, read_run, write_recording
from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from tests.unit.simulated_run import TARGET, TRUTH, simulated_run
from tests.unit.synthetic_run import append, config, evaluation, new_folder, plan, started, whole_run, window

SIZES = ((128, 128, 128), (200, 110, 50), (64, 64, 64), (40, 60, 160))
UNSEEN = (300, 160, 70)


@pytest.fixture(scope="module")
def fitted() -> Scenario:
    runs = [simulated_run(f"run-{number}", sizes) for number, sizes in enumerate(SIZES)]
    series = [series_of(run) for run in runs]
    return calibrate(scenario_of("fitted", runs, series), series)


def test_a_run_not_used_for_the_fit_is_predicted(fitted: Scenario) -> None:
    unseen = series_of(simulated_run("unseen", UNSEEN))
    found = predict(fitted, unseen, np.random.default_rng(0))
    assert found.iteration_error < 0.05
    assert found.time_error < 0.1
    assert math.isfinite(found.measured_s)


def test_its_network_time_loss_and_accuracy_of_training_are_foretold_too(fitted: Scenario) -> None:
    unseen = series_of(simulated_run("unseen", UNSEEN))
    push_pull_s = predict_times(fitted, unseen.sizes).push_pull_s
    assert np.median(push_pull_s) == pytest.approx(np.median(unseen.push_pull_s), rel=0.15)
    curve = Curve(parameters_of((fitted,)), unseen)
    assert curve.loss(unseen.first) == pytest.approx(unseen.loss, rel=0.1)
    assert np.abs(curve.accuracy(unseen.first) - unseen.accuracy).max() < 0.025


def test_every_worker_costs_what_it_really_costs_also_those_that_always_wait(fitted: Scenario) -> None:
    sizes = np.array([[100.0, 100, 100], [300, 300, 300]])
    found, truth = predict_times(fitted, sizes).compute_s, predict_times(TRUTH, sizes).compute_s
    assert np.abs(found / truth - 1).max() < 0.15


@pytest.mark.slow
def test_the_recorded_real_runs_are_foretold_each_from_the_others() -> None:
    _, _, predictions = calibration.measure(calibration.FOLDER)
    assert len(predictions) == len(RUNS)
    figures = calibration.figures_of(predictions)
    assert figures["median_iteration_error"] <= calibration.ITERATION_BAR
    assert figures["median_time_error"] <= calibration.TIME_BAR
    assert figures["within_both"] >= len(RUNS) // 2


def test_the_page_says_what_each_run_was_and_how_many_are_within_the_bars() -> None:
    off = {"uneven-448": 0.3}
    found = [Prediction(run.name, 20, off.get(run.name, 0.033), 12.2, 11.0) for run in RUNS]
    block = calibration.page_block(found, 0.85, "the command")
    assert block.startswith(
        "`the command`\n\n6 of 7 runs are within 10 % (time of an iteration) and 20 % (time to 85 %)."
    )
    assert "| uneven-448 | 256, 128, 64 | 30.0 % | 12.2 | 11.0 | 9.8 % |" in block
    assert "| proportional-384 | proportional, from 128 each | 3.3 % |" in block


def test_a_recording_that_fails_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings of two kinds would be calibrated as one cluster."""
    kept = tmp_path / f"{RUNS[0].name}{SUFFIX}"
    kept.write_bytes(b"old")

    def launched(config: Config, folder: Path, limit_s: float) -> RunFolder:
        if config.name == RUNS[-1].name:
            raise SystemExit("it failed")
        return RunFolder(folder)

    monkeypatch.setattr(calibration_record, "launched", launched)
    monkeypatch.setattr(calibration_record, "write_recording", lambda _, file: file.write_bytes(b"new"))
    console = Console(file=io.StringIO())
    with pytest.raises(SystemExit):
        calibration_record.record(tmp_path, console)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]
    monkeypatch.setattr(calibration_record, "launched", lambda _, folder, limit_s: RunFolder(folder))
    calibration_record.record(tmp_path, console)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"new"] * len(RUNS)


def test_what_the_runs_tell_directly_is_taken_over(fitted: Scenario) -> None:
    assert fitted.initial_sizes == SIZES[0]
    assert (fitted.window, fitted.lr_rule, fitted.target_accuracy) == (20, "none", TARGET)
    assert (fitted.batch.min, fitted.batch.max, fitted.model_bytes) == (16, 512, 8e5)
    assert fitted.training.data_samples == pytest.approx(TRUTH.training.data_samples, rel=0.01)


def test_the_growth_of_the_noise_scale_is_found(fitted: Scenario) -> None:
    """In the range of the runs: at the start and where half of the loss is gone."""
    for excess in (0.8, 0.4):
        found = fitted.training.noise_scale * excess**-fitted.training.noise_growth
        truth = TRUTH.training.noise_scale * excess**-TRUTH.training.noise_growth
        assert 0.4 < found / truth < 2.5


def test_a_quota_shows_in_a_worker_that_waits() -> None:
    """It computes at full speed after a wait; what it can keep up is its CPU time over its cores."""
    run = simulated_run("quota", SIZES[0], windows=4)
    decided = []
    for one in run.decided:
        first, *others = one.view.records
        assert first is not None
        half = dataclasses.replace(first, cpu_cores=0.5, cpu_ratio=0.4)
        decided.append(RecordedDecision(dataclasses.replace(one.view, records=(half, *others)), one.batch_sizes))
    series = series_of(dataclasses.replace(run, decided=tuple(decided)))
    assert series.need_s[:, 0] == pytest.approx(0.8 * series.iteration_s)
    assert series.need_s[:, 1:] == pytest.approx(series_of(run).need_s[:, 1:])


def test_the_clock_leaves_no_iteration_out() -> None:
    """Windows 0 and 2 were reported, 1 was not: its iterations cost what those of the next window cost."""
    run = simulated_run("gap", SIZES[0], windows=6)
    gap = dataclasses.replace(run, decided=(run.decided[0], *run.decided[2:]))
    series = series_of(gap)
    assert len(series.clock_s) == 6 * 20 + 1
    steps = np.diff(series.clock_s)
    assert steps[:20] == pytest.approx(series.iteration_s[0])
    assert steps[20:60] == pytest.approx(series.iteration_s[1])


def curve(accuracy: list[float]) -> Series:
    run = simulated_run("curve", SIZES[0], windows=len(accuracy))
    points = zip(run.evaluations, accuracy, strict=True)
    return series_of(
        dataclasses.replace(run, evaluations=tuple(dataclasses.replace(p, values={"accuracy": a}) for p, a in points))
    )


def test_the_target_is_reached_between_two_evaluations() -> None:
    assert curve([0.5, 0.6, 0.7, 0.80, 0.84, 0.88]).reaches(0.82) == pytest.approx(90)
    assert curve([0.5, 0.6, 0.7]).reaches(0.4) == 20


def test_one_lucky_evaluation_does_not_reach_it() -> None:
    assert curve([0.5, 0.9, 0.6, 0.7, 0.8, 0.86, 0.9]).reaches(0.82) > 100
    assert math.isnan(curve([0.5, 0.6, 0.7]).reaches(0.84))
    assert math.isnan(curve([0.5, 0.6, 0.7]).time_to(0.84))


def test_the_simulated_time_is_unknown_where_most_seeds_do_not_reach_it() -> None:
    time_s = np.array([[0.0, 0, 0], [10, 10, 10]])
    assert time_to(0.5, time_s, np.array([[0.0, 0, 0], [1, 1, 0.1]])) == pytest.approx(5)
    assert math.isnan(time_to(0.5, time_s, np.array([[0.0, 0, 0], [1, 0.1, 0.1]])))


def refusals() -> list[tuple[RecordedRun, str]]:
    first = simulated_run("a", SIZES[0])

    def configured(**changes: object) -> RecordedRun:
        return dataclasses.replace(first, name="b", config=first.config.model_copy(update=changes))

    return [
        (configured(window=10), "window: got 10, expected 20 as in a"),
        (configured(lr_rule="sqrt"), "lr_rule: got sqrt, expected none as in a"),
    ]


@pytest.mark.parametrize(("other", "message"), refusals())
def test_runs_that_do_not_belong_together_are_refused(other: RecordedRun, message: str) -> None:
    runs = [simulated_run("a", SIZES[0]), other]
    with pytest.raises(UsageError, match=message):
        scenario_of("x", runs, [series_of(run) for run in runs])


def test_a_target_that_no_run_reached_is_refused() -> None:
    run = simulated_run("a", SIZES[0], windows=4)
    with pytest.raises(UsageError, match=r"target accuracy 0.8: the runs reached 0.*at best"):
        scenario_of("x", [run], [series_of(run)])


def test_learning_rates_that_count_from_different_batches_are_refused() -> None:
    runs = [simulated_run("a", SIZES[0]), simulated_run("b", SIZES[1])]
    runs = [dataclasses.replace(run, config=run.config.model_copy(update={"lr_rule": "sqrt"})) for run in runs]
    with pytest.raises(UsageError, match=r"initial global batch.*got 360, expected 384"):
        scenario_of("x", runs, [series_of(run) for run in runs])


def test_a_run_whose_learning_rate_was_decided_on_is_refused() -> None:
    run = simulated_run("a", SIZES[0])
    decided = []
    for one in run.decided:
        records = [record and dataclasses.replace(record, lr_guard=0.5) for record in one.view.records]
        decided.append(dataclasses.replace(one, view=dataclasses.replace(one.view, records=tuple(records))))
    decayed = dataclasses.replace(run, decided=tuple(decided))
    with pytest.raises(UsageError, match=r"a: factor of the guard on the learning rate: got 0.5, expected 1"):
        scenario_of("x", [decayed], [series_of(decayed)])


# reading


def a_folder(base: Path, **settings: Any) -> RunFolder:
    folder = new_folder(base)
    folder.config_file.write_text(dump_config(config(**settings)))
    return folder


def test_a_run_folder_is_read_decision_by_decision(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    whole_run(folder, windows=10)
    run = read_run(folder.path)
    assert [one.view.window for one in run.decided] == list(range(10))
    assert run.decided[0].view.plan.batch_sizes == (64, 64, 64)
    for before, after in zip(run.decided, run.decided[1:], strict=False):
        assert after.view.plan.batch_sizes == before.batch_sizes
    view = run.decided[3].view
    assert [record.rank for record in view.reported] == [0, 1, 2]
    assert {record.window for record in view.reported} == {3}
    assert len(view.links) == 3
    assert view.servers[0].name == "server-0"
    assert [point.iteration for point in run.evaluations] == [100, 200]


def test_a_recording_is_the_same_run(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    whole_run(folder, windows=10)
    file = tmp_path / f"run{SUFFIX}"
    write_recording(folder, file)
    recorded, run = read_run(file), read_run(folder.path)
    assert recorded.config == run.config
    assert recorded.evaluations == run.evaluations
    assert repr(recorded.decided) == repr(run.decided)  # NaN is equal to nothing
    first = file.read_bytes()
    write_recording(folder, file)
    assert file.read_bytes() == first


def test_a_recording_holds_no_passwords(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    whole_run(folder, windows=5)
    config = load_config(folder.config_file).model_copy(update={"env": {"PASSWORD": "hunter2"}})
    folder.write_config(config)
    write_recording(folder, tmp_path / f"x{SUFFIX}")
    assert b"hunter2" not in gzip.decompress((tmp_path / f"x{SUFFIX}").read_bytes())
    assert read_run(tmp_path / f"x{SUFFIX}").config == config.model_copy(update={"env": {}})


def test_windows_that_somebody_did_not_report_or_that_stalled_are_left_out(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    for rank in range(3):
        append(folder.worker_file(rank), started(rank))
    for number in range(5):
        for rank in range(2 if number == 1 else 3):
            append(folder.worker_file(rank), window(rank, number, flagged=number == 2))
        append(folder.journal_file, plan(number + 1, (64, 64, 64), window=number))
    append(folder.worker_file(0), evaluation(3.0, 0.5))
    assert [view.window for view in read_run(folder.path).complete] == [0, 3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "not a recording, or damaged"),
        (b"not gzip", "not a recording, or damaged"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / f"x{SUFFIX}"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_run(file)


def test_a_recording_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    whole_run(folder, windows=5)
    file = tmp_path / f"x{SUFFIX}"
    write_recording(folder, file)
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(UsageError, match="damaged"):
        read_run(file)


@pytest.mark.parametrize(
    ("content", "largest"),
    [(b'{"kind": "run"}\n' * 100_000, 1 << 20), (b"0" * (17 << 20), 512 << 20), (b"[" * 9999, 9999)],
)
def test_a_recording_that_unpacks_to_any_size_is_refused_at_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, largest: int
) -> None:
    monkeypatch.setattr(recorded_module, "_LARGEST_BYTES", largest)
    file = tmp_path / f"x{SUFFIX}"
    file.write_bytes(gzip.compress(content))
    with pytest.raises(UsageError, match="not a recording, or damaged"):
        read_run(file)


def test_a_run_without_windows_is_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    append(folder.worker_file(0), started(0))
    with pytest.raises(UsageError, match="without a decided window"):
        read_run(folder.path)


# the command


@pytest.mark.slow
def test_the_command_writes_a_scenario_that_can_be_loaded(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, target_accuracy=0.5)
    whole_run(folder, windows=30)
    out = tmp_path / "mine.yaml"
    done = CliRunner().invoke(cli, ["sim", "calibrate", str(folder.path), "-o", str(out), "--name", "mine"])
    assert done.exit_code == 0, done.output
    scenario = load_scenario(out)
    assert (scenario.name, scenario.n_workers, scenario.target_accuracy) == ("mine", 3, 0.5)
    assert str(out) in done.output


@pytest.mark.slow
def test_cpu_quotas_and_a_slow_start_are_found_too() -> None:
    quotas = (1.0, 0.5, 0.25)
    workers = tuple(
        worker.model_copy(update={"quota": quota}) for worker, quota in zip(TRUTH.workers, quotas, strict=True)
    )
    truth = TRUTH.model_copy(update={"workers": workers, "jitter": 0.02, "warm_up": 1.4})
    runs = [simulated_run(f"run-{number}", sizes, scenario=truth) for number, sizes in enumerate(SIZES)]
    series = [series_of(run) for run in runs]
    found = calibrate(scenario_of("fitted", runs, series), series)
    assert [worker.quota for worker in found.workers] == pytest.approx(quotas, rel=0.05)
    assert found.warm_up == pytest.approx(1.4, abs=0.1)
    calm = found.model_copy(update={"warm_up": 1.0})
    windows = np.array([SIZES[0]] * 3, dtype=float)  # what is foretold of windows is not about the first one
    assert predict_times(found, windows).iteration_s == pytest.approx(predict_times(calm, windows).iteration_s)
    sizes = np.array([[100.0, 100, 100], [300, 300, 300]])
    assert predict_times(found, sizes).sustained_s == pytest.approx(predict_times(truth, sizes).sustained_s, rel=0.15)
