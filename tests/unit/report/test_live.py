import io

import pytest
from rich.console import Console

from dynamix_ps.report.live.view import LiveView
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import (
    append,
    config,
    config_on_hosts,
    evaluation,
    finished,
    flow,
    link,
    links,
    measured,
    plan,
    plan_applied,
    role,
    server,
    started,
    window,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def recorder(folder: RunFolder) -> Recorder:
    return Recorder(folder, config(2))


def terminal(width: int = 168, encoding: str = "utf-8", height: int = 24) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    size = {"width": width, "height": height}
    return Console(file=file, force_terminal=True, record=True, color_system=None, legacy_windows=False, **size)


def drawn(recorder: Recorder, console: Console) -> str:
    console.print(LiveView(recorder.state, console).render())
    return console.export_text()


def sizes_shown(recorder: Recorder) -> list[str]:
    """Of workers 0 and 1."""
    rows = [line.split() for line in drawn(recorder, terminal(80)).splitlines()]
    return [row[1] for row in rows if row and row[0] in ("0", "1")]


def fill(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0), plan_applied(0, 1, [80, 48]), evaluation(3, 0.8123))
    append(folder.worker_file(1), started(1), window(1, 0), plan_applied(1, 1, [80, 48]))
    append(
        folder.worker_file(1), {"kind": "degraded", "rank": 1, "time_s": 1.0, "what": "arbitrator", "detail": "gone"}
    )
    recorder.poll()


def fill_measured(folder: RunFolder, recorder: Recorder) -> None:
    values = {"push_bytes_per_s": 12e6, "pull_bytes_per_s": 5e5, "retransmits_per_s": 3.5, "rtt_s": 0.00025}
    values |= {"cpu_ratio": 0.75, "cpu_cores": 1.0, "memory_bytes": 4e8, "network_age_s": 0.2}
    for rank in (0, 1):
        append(folder.worker_file(rank), started(rank), window(rank, 0, **values, network_source="ebpf"))
    append(folder.journal_file, links(0, [link(0), link(1, slow="compute")], [server()]))
    recorder.poll()


def on_one_host(folder: RunFolder, recorder: Recorder) -> None:
    for name, (here, there) in {"worker-0": ("127.0.0.1:5", "127.0.0.1:6"), "server-0": ("[::1]:6", "[::1]:5")}.items():
        append(folder.role_file(name), role(name, [flow(here, there)]))
    recorder.poll()


def six_degradations(folder: RunFolder, kind: str = "degraded") -> None:
    detail = "eBPF: not permitted; run as root" if kind == "degraded" else "eBPF again"
    line = {"kind": kind, "time_s": 1.0, "what": "network metrics", "detail": detail}
    for rank in (0, 1):
        append(folder.worker_file(rank), line | {"rank": rank})
    for name in ("scheduler", "server-0", "server-1", "server-2"):
        append(folder.role_file(name), line)


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
        assert "proportional" in text and "test accuracy 81.23 %" in text
        assert "degraded: arbitrator (worker-1): gone" in text
        assert text.count("plan 1 applied at iteration 23: 80 48") == 1  # both workers say so

    def test_what_all_roles_say_is_one_message(self, folder: RunFolder, recorder: Recorder) -> None:
        six_degradations(folder)
        recorder.poll()
        text = drawn(recorder, terminal(width=80))
        assert text.count("network metrics") == 1
        assert "degraded: network metrics on 6 roles: eBPF: not permitted" in text
        six_degradations(folder, "recovered")
        recorder.poll()
        text = drawn(recorder, terminal(width=80))
        assert "degraded" not in text and text.count("network metrics") == 1

    def test_time_to_go_at_the_pace_of_the_last_windows(self, folder: RunFolder, recorder: Recorder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0, trained_ratio=0.1))
        recorder.poll()
        assert "to go" not in drawn(recorder, terminal(80))  # one window tells no pace
        append(folder.worker_file(0), *(window(0, n, trained_ratio=0.1 * (n + 1)) for n in (1, 2, 3)))
        recorder.poll()
        assert recorder.state.progress.time_to_go_s == pytest.approx(6.0)  # 0.1 per second, 0.6 left
        assert "about 00:06 to go" in drawn(recorder, terminal(80))
        append(folder.worker_file(0), finished(0, 80, 80 * 64, 4.0))
        append(folder.worker_file(1), finished(1, 80, 80 * 64, 4.0))
        recorder.poll()
        assert "to go" not in drawn(recorder, terminal(80))

    @pytest.mark.parametrize(("encoding", "bar"), [("utf-8", "━" * 7 + "─" * 9), ("ascii", "#" * 7 + "." * 9)])
    def test_a_bar_with_percent_epoch_and_samples_per_second_of_all(
        self, folder: RunFolder, recorder: Recorder, encoding: str, bar: str
    ) -> None:
        append(folder.worker_file(0), started(0), window(0, 0, epoch=1.258, trained_ratio=0.42))
        append(folder.worker_file(1), started(1), window(1, 0, 16))
        recorder.poll()
        lines = drawn(recorder, terminal(80, encoding)).splitlines()
        assert lines[1].startswith(f"{bar} 42 %  00:0")
        assert lines[2].startswith("iteration 20  epoch 1.26  1,600 samples/s  plan 0  global batch 80")

    def test_no_bar_where_the_script_names_no_end(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        assert drawn(recorder, terminal(80)).splitlines()[1].startswith("00:0")

    def test_every_degradation_is_one_line(self, folder: RunFolder, recorder: Recorder) -> None:
        line = {"kind": "degraded", "rank": 0, "time_s": 1.0}
        for what in ("data", "network metrics"):
            append(folder.worker_file(0), line | {"what": what, "detail": "a long reason " * 20})
        recorder.poll()
        lines = drawn(recorder, terminal(80)).splitlines()
        assert [line.split()[1] for line in lines if "long reason" in line] == ["data", "network"]

    @pytest.mark.parametrize("height", [24, 16])
    @pytest.mark.parametrize("workers", [2, 8, 40])
    def test_fits_the_rows_of_the_terminal(self, folder: RunFolder, workers: int, height: int) -> None:
        recorder = Recorder(folder, config(workers))
        for rank in range(workers):
            detail = {"kind": "degraded", "time_s": 1.0, "what": f"thing {rank}", "detail": "x" * 200}
            append(folder.worker_file(rank), started(rank), window(rank, 0, trained_ratio=0.1), detail | {"rank": rank})
            append(folder.worker_file(rank), {"kind": "failed", "rank": rank, "time_s": 1.0, "error": "y" * 200})
        append(folder.journal_file, links(0, [link(0)], [server(), server("scheduler")]))
        recorder.poll()
        lines = drawn(recorder, terminal(80, height=height)).splitlines()
        assert len(lines) < height
        shown = [line for line in lines if line.split()[:1] and line.split()[0].isdigit()]
        more = [line for line in lines if line.startswith("and ")]
        assert len(shown) == workers if not more else more == [f"and {workers - len(shown)} more workers"]
        assert sum(line.startswith("degraded: ") for line in lines) == min(workers, 3)

    def test_before_the_first_line(self, recorder: Recorder) -> None:
        text = drawn(recorder, terminal())
        assert text.count("starting") == 2
        assert "global batch -" in text

    def test_fits_eighty_columns(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        text = drawn(recorder, terminal(width=80))
        assert "…" not in text and max(map(len, text.splitlines())) <= 80
        assert all(word in text for word in ("worker", "batch", "change", "samples/s", "loss", "running"))

    @pytest.mark.parametrize("width", [80, 104, 120, 168])
    def test_every_width_holds_a_full_table(self, folder: RunFolder, recorder: Recorder, width: int) -> None:
        fill_measured(folder, recorder)
        append(folder.worker_file(1), plan_applied(1, 1, [80, 1024]))
        recorder.poll()
        text = drawn(recorder, terminal(width))
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width
        assert all(word in text for word in ("1024", "▲ +960", "1,280", "push", "slow: compute"))

    def test_measured_values_of_a_worker(self, folder: RunFolder, recorder: Recorder) -> None:
        fill_measured(folder, recorder)
        (row,) = (line for line in drawn(recorder, terminal(120)).splitlines() if "slow" in line)
        assert " ".join(row.split()[-11:]) == "25.0 12.0 0.5 5.5 0.25 75 % 2.000 0.500 slow: compute"
        assert " 12.0/0.5 " in drawn(recorder, terminal(80))

    @pytest.mark.parametrize("width", [80, 104, 120, 168])
    def test_on_one_host_sums_are_shown_and_no_network(self, folder: RunFolder, recorder: Recorder, width: int) -> None:
        fill_measured(folder, recorder)
        assert "push" in drawn(recorder, terminal(width))
        on_one_host(folder, recorder)
        text = drawn(recorder, terminal(width))
        assert " 25.0 " in text and "sums in MB/s" in text and "…" not in text
        assert not any(word in text for word in ("push ", "push/pull ", "RTT", "retr.", "unread", "ebpf"))
        (row,) = (line for line in text.splitlines() if line.startswith("server-0"))
        assert row.split() == ["server-0", "25", "%", "100"]

    def test_retransmits_of_one_side_are_shown_as_they_are(self, folder: RunFolder, recorder: Recorder) -> None:
        fill_measured(folder, recorder)
        append(folder.journal_file, links(1, [link(1, pull_retransmits_per_s=None)]))
        recorder.poll()
        assert recorder.state.workers[1].retransmits_per_s == 3.5

    def test_source_of_all_or_of_each(self, folder: RunFolder, recorder: Recorder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0) | measured(0, 0))
        append(folder.worker_file(1), started(1), window(1, 0) | measured(1, 0))
        recorder.poll()
        assert "network: ebpf, 0.2 s old" in drawn(recorder, terminal(80))
        append(folder.worker_file(1), window(1, 1) | measured(1, 0, source="sockdiag"))
        recorder.poll()
        assert "network: ebpf (worker 0), sockdiag (worker 1), 0.2 s old" in drawn(recorder, terminal())

    def test_servers_and_scheduler(self, folder: RunFolder, recorder: Recorder) -> None:
        append(folder.roles_dir / "scheduler.jsonl", role("scheduler"))
        recorder.poll()
        (row,) = (line for line in drawn(recorder, terminal(80)).splitlines() if line.startswith("scheduler"))
        assert row.split() == ["scheduler", "-", "-", "25", "%", "100", "-", "-"]
        append(folder.journal_file, links(0, [], [server()]))
        recorder.poll()
        (row,) = (line for line in drawn(recorder, terminal(80)).splitlines() if line.startswith("server-0"))
        assert row.split() == ["server-0", "36.0", "33.0", "35", "%", "150", "0.20", "0.10"]
        lost = {"kind": "lost", "time_s": 2.0, "role": "server", "slot": 0, "reason": "it has exited"}
        append(folder.journal_file, lost)
        recorder.poll()
        lines = [line for line in drawn(recorder, terminal(80)).splitlines() if line.startswith("server-0")]
        assert lines == ["server-0 is lost: it has exited"], "no row of the table"

    def test_a_worker_that_is_gone_has_no_size(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        assert sizes_shown(recorder) == ["80", "48"]
        lost = {"kind": "lost", "time_s": 2.0, "role": "worker", "slot": 1, "reason": "it has exited"}
        append(folder.journal_file, lost)
        left = {"kind": "worker_left", "rank": 0, "time_s": 2.3, "iteration": 44, "workers": 1}
        append(folder.worker_file(0), left)
        recorder.poll()
        assert sizes_shown(recorder) == ["-", "-"]
        append(folder.worker_file(1), started(1, 60, time_s=3.0))
        recorder.poll()
        assert sizes_shown(recorder) == ["-", "60"]

    def test_unknown_is_a_dash_and_no_servers_are_no_table(self, folder: RunFolder, recorder: Recorder) -> None:
        fill(folder, recorder)
        text = drawn(recorder, terminal(80))
        assert "network: not measured" in text
        assert " -/- " in text and "unread" not in text

    def test_prometheus_address_is_told(self, folder: RunFolder, recorder: Recorder) -> None:
        address = "http://127.0.0.1:39112/metrics"
        append(folder.journal_file, {"kind": "prometheus", "time_s": 1.0, "address": address})
        recorder.poll()
        assert f"prometheus: {address}" in drawn(recorder, terminal(80))

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

    def test_every_ten_seconds_and_none_before_training_begins(
        self, folder: RunFolder, recorder: Recorder, console: Console, clock: Clock
    ) -> None:
        view = LiveView(recorder.state, console, clock)
        view.refresh()
        clock.now_s = 65.0
        append(folder.worker_file(0), started(0))
        recorder.poll()
        view.refresh()
        assert self.lines(console) == []
        fill(folder, recorder)
        for now_s in (66.0, 67.0, 75.0, 76.0, 81.0, 86.5):
            clock.now_s = now_s
            view.refresh()
        told = [line.split()[0] for line in self.lines(console) if not line.startswith("event")]
        assert told == ["01:06", "01:16", "01:26"]

    def test_a_line_says_how_far_the_run_is(self, folder: RunFolder, recorder: Recorder, console: Console) -> None:
        view = LiveView(recorder.state, console, Clock())
        for number in range(3):
            values = {"trained_ratio": 0.1 * (number + 1), "epoch": 0.5, "global_loss": 0.25}
            append(folder.worker_file(0), *([] if number else [started(0)]), window(0, number, **values))
            append(folder.worker_file(1), *([] if number else [started(1)]), window(1, number, wait_s=0.1))
        trouble = {"kind": "degraded", "rank": 1, "time_s": 1.0, "what": "arbitrator", "detail": "gone"}
        append(folder.worker_file(0), plan_applied(0, 1, [80, 48]), evaluation(3, 0.8123))
        append(folder.worker_file(1), plan_applied(1, 1, [80, 48]), trouble)
        recorder.poll()
        view.refresh()
        assert self.lines(console) == [
            "event degraded: arbitrator (worker-1): gone",
            "00:00, about 00:07 to go  30 % done  iteration 60  epoch 0.50  2,560 samples/s  test accuracy 81.23 %  "
            "batch sizes 80 48 (plan 1)  waiting 20 %  loss 0.250",
        ]

    def test_a_line_names_the_workers_that_do_not_train(
        self, folder: RunFolder, recorder: Recorder, console: Console
    ) -> None:
        fill(folder, recorder)
        stall = {"kind": "stall", "rank": 0, "time_s": 2.0, "iteration": 2, "waited_s": 9, "missing": [1]}
        append(folder.worker_file(0), stall)
        append(folder.worker_file(1), {"kind": "failed", "rank": 1, "time_s": 2.0, "error": "no memory"})
        recorder.poll()
        LiveView(recorder.state, console, Clock()).refresh()
        assert self.lines(console)[-1].endswith("  worker 0 waits for 1  worker 1 failed")

    def test_the_same_trouble_of_many_is_told_once_until_it_is_over(
        self, folder: RunFolder, recorder: Recorder, console: Console
    ) -> None:
        view = LiveView(recorder.state, console)
        for kind in ("degraded", "degraded", "recovered", "degraded"):
            six_degradations(folder, kind)
            recorder.poll()
            view.refresh()
        told = [line for line in self.lines(console) if line.startswith("event")]
        lost = "event degraded: network metrics on 6 roles: eBPF: not permitted; run as root"
        assert told == [lost, "event recovered: network metrics (worker-0): eBPF again", lost]

    def test_last_word_at_the_end(self, folder: RunFolder, recorder: Recorder, console: Console, clock: Clock) -> None:
        fill(folder, recorder)
        with LiveView(recorder.state, console, clock) as view:
            view.refresh()
        assert [line.split()[0] for line in self.lines(console)] == ["00:00", "00:00"]


def test_the_safety_net_is_shown_once_it_acted(folder: RunFolder, recorder: Recorder) -> None:
    fill(folder, recorder)
    assert "safety net" not in drawn(recorder, terminal())
    taken_over = {"kind": "fallback", "time_s": 1.0, "window": 3, "detail": "proportional shares for 20 windows"}
    append(folder.journal_file, plan(9, [90, 38], fallback=True), taken_over, taken_over)
    recorder.poll()
    shown = drawn(recorder, terminal())
    assert "safety net: 2 times, 1 window" in shown
    assert "proportional shares for 20 windows" in shown


def test_that_too_few_workers_wait_for_others_is_shown_until_they_go_on(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.journal_file, {"kind": "short_of_workers", "workers": 2, "min_workers": 3, "wait_s": 60.0})
    recorder.poll()
    assert "waits for workers: 2 are left, elastic.min_workers is 3" in drawn(recorder, terminal())
    append(folder.journal_file, {"kind": "members", "workers": [0, 1, 2], "servers": [0], "round": 7, "took_s": 8.0})
    recorder.poll()
    assert "waits for workers" not in drawn(recorder, terminal())


def test_workers_of_one_host_stand_together_where_there_are_several(folder: RunFolder) -> None:
    recorder = Recorder(folder, config_on_hosts("b", "a", "b"))
    rows = [line.split()[:2] for line in drawn(recorder, terminal()).splitlines() if "starting" in line]
    assert rows == [["b", "0"], ["b", "2"], ["a", "1"]]
    assert "host" not in drawn(recorder, terminal(80))


def test_on_one_host_there_is_no_column_for_it(recorder: Recorder) -> None:
    assert "host" not in drawn(recorder, terminal()).partition("worker")[0]
