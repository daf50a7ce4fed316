import io
from pathlib import Path

import pytest
from rich.console import Console

from dynamix_ps.report.live import LiveView
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_folder import RunFolder
from tests.unit.synthetic_run import append, config, evaluation, new_folder, plan_applied, started, window


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_folder(tmp_path)


@pytest.fixture
def recorder(folder: RunFolder) -> Recorder:
    return Recorder(folder, config(2))


def terminal(width: int = 112, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, force_terminal=True, width=width, record=True, color_system=None, legacy_windows=False)


def drawn(recorder: Recorder, console: Console) -> str:
    console.print(LiveView(recorder.state, console).render())
    return console.export_text()


def fill(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0), plan_applied(0, 1, [80, 48]), evaluation(3, 0.8123))
    append(folder.worker_file(1), started(1), window(1, 0), plan_applied(1, 1, [80, 48]))
    append(
        folder.worker_file(1), {"kind": "degraded", "rank": 1, "time_s": 1.0, "what": "arbitrator", "detail": "gone"}
    )
    recorder.poll()


class TestTable:
    def test_shows_sizes_changes_rates_times_and_trouble(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        text = drawn(recorder, terminal())
        first, second = (next(line for line in text.splitlines() if line.split()[:1] == [rank]) for rank in "01")
        assert first.split()[:5] == ["0", "80", "▲", "+16", "1,280"]
        assert second.split()[:4] == ["1", "48", "▼", "-16"]
        assert first.count("█") == 8 and first.count("░") in (4, 5)  # 50 % and 30 % of 16
        assert "50 % / 10 % / 30 %" in first
        assert "running" in first and "…" not in first
        assert "iteration 60" in text and "plan 1" in text and "global batch 128" in text
        assert "proportional" in text and "0.8123" in text
        assert "worker-1: degraded: arbitrator: gone" in text

    def test_before_the_first_line(self, recorder: Recorder) -> None:
        text = drawn(recorder, terminal())
        assert text.count("starting") == 2
        assert "global batch -" in text

    def test_fits_eighty_columns(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        text = drawn(recorder, terminal(width=80))
        assert "…" not in text.splitlines()[3]
        assert all(word in text for word in ("worker", "batch", "change", "samples/s", "loss", "running"))

    def test_terminal_without_unicode(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        assert drawn(recorder, terminal(encoding="ascii")).isascii()

    def test_context_draws_and_ends(self, folder: RunFolder, recorder: Recorder) -> None:
        console = terminal()
        with LiveView(recorder.state, console) as view:
            fill(folder, recorder)
            view.refresh()
        assert "samples/s" in console.export_text()


class TestPlainLines:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def console(self) -> Console:
        return Console(file=io.StringIO(), force_terminal=False, width=80)

    def lines(self, console: Console) -> list[str]:
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    def test_every_ten_seconds(self, recorder: Recorder, console: Console, clock: Clock) -> None:
        view = LiveView(recorder.state, console, clock)
        for now_s in (0.0, 1.0, 9.0, 10.0, 15.0, 20.5):
            clock.now_s = now_s
            view.refresh()
        assert [line.split()[0] for line in self.lines(console)] == ["elapsed_s=0", "elapsed_s=10", "elapsed_s=20"]

    def test_on_every_plan_and_on_trouble(
        self, folder: RunFolder, recorder: Recorder, console: Console, clock: Clock
    ) -> None:
        view = LiveView(recorder.state, console, clock)
        view.refresh()
        fill(folder, recorder)
        view.refresh()
        view.refresh()
        _, trouble, line = self.lines(console)
        assert trouble == "event worker-1: degraded: arbitrator: gone"
        fields = dict(pair.split("=", 1) for pair in line.split(" "))
        assert fields["batch"] == "80,48"
        assert fields["plan"] == "1"
        assert fields["wait"] == "0.30,0.30"
        assert fields["state"] == "running,running"
        assert fields["test_accuracy"] == "0.8123"
        assert "\x1b" not in line

    def test_last_word_at_the_end(self, recorder: Recorder, console: Console, clock: Clock) -> None:
        with LiveView(recorder.state, console, clock) as view:
            view.refresh()
        assert len(self.lines(console)) == 2

    def test_states_have_no_spaces(self, folder: RunFolder, recorder: Recorder, console: Console, clock: Clock) -> None:
        append(folder.worker_file(0), started(0))
        append(folder.worker_file(0), {"kind": "stall", "rank": 0, "iteration": 2, "waited_s": 9, "missing": [1, 2]})
        recorder.poll()
        LiveView(recorder.state, console, clock).refresh()
        assert "state=waits_for_1+_2,starting" in self.lines(console)[-1]
