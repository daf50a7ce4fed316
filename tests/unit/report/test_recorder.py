import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dynamix_ps.bounded_json import DEEPEST
from dynamix_ps.report.live.view import LiveView
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.summary import Outcome, write_summary
from dynamix_ps.report.summary_text import headline
from dynamix_ps.run_record.json_lines import LONGEST_BYTES, JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder
from tests.full_disk import room_for
from tests.unit.synthetic_run import (
    START_S,
    WINDOW,
    append,
    config,
    evaluation,
    finished,
    flow,
    link,
    links,
    plan,
    plan_applied,
    role,
    server,
    started,
    window,
)


@pytest.fixture
def recorder(folder: RunFolder) -> Recorder:
    return Recorder(folder, config(2), clock=lambda: START_S)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def events(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.events_file.read_text().splitlines()]


def test_the_launcher_knows_of_all_lines_that_a_full_disk_does_not_take(folder: RunFolder, recorder: Recorder) -> None:
    lost = {"kind": "lost", "role": "worker", "slot": 0, "incarnation": "start-0", "reason": "it has exited"}
    append(folder.journal_file, {**lost, "time_s": START_S}, {**lost, "slot": 1, "time_s": START_S})
    with room_for(0), pytest.raises(OSError, match="large"):
        recorder.poll()
    assert recorder.state.membership.lost("worker") == {0, 1}
    recorder.event("degraded", what="any", detail="thing")
    assert [event["slot"] for event in events(folder) if event["kind"] == "lost"] == [0, 1]


class TestTail:
    def test_half_a_line_waits_for_its_other_half(self, tmp_path: Path) -> None:
        path = tmp_path / "f.jsonl"
        tail = JsonLinesTail(path)
        assert tail.read() == []
        path.write_bytes(b'{"kind": "a"}\n{"kind": "b", "te')
        assert tail.read() == [{"kind": "a"}]
        assert tail.read() == []
        with path.open("ab") as file:
            file.write('xt": "ü"}\n'.encode()[:6])
        assert tail.read() == []
        with path.open("ab") as file:
            file.write('xt": "ü"}\n'.encode()[6:])
        assert tail.read() == [{"kind": "b", "text": "ü"}]
        assert tail.damaged == 0

    def test_whole_line_after_a_torn_one_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "f.jsonl"
        path.write_text('{"kind": "a", "x": 1{"kind": "b", "x": 2}\n{"kind": "c"}\n')
        tail = JsonLinesTail(path)
        assert tail.read() == [{"kind": "b", "x": 2}, {"kind": "c"}]
        assert tail.damaged == 1

    @pytest.mark.parametrize(
        "line",
        [
            "nonsense",
            "[1]",
            "3",
            '{"no": "kind"}',
            "\x00\x01",
            '{"kind": ',
            '{"kind": []}',
            '{"kind": "a", "time_s": "b"}',
            '{"kind": "a", "time_s": 1e400}',
            '{"kind": "a", "time_s": NaN}',
            '{"kind": "a", "rank": "0"}',
            '{"kind": "a", "iteration": true}',
            '{"kind": "a", "x": 1' + "0" * 400 + "}",
            "[" * 200_000,
            '{"kind": "a", "x": ' + "[" * 200_000 + "]" * 200_000 + "}",
            '{"kind": "a", "x": ' + '{"y": [' * DEEPEST + "]}" * DEEPEST + "}",
            '{"kind": "a", "x": "' + "x" * LONGEST_BYTES + '"}',
            "x" * 2 * LONGEST_BYTES,
        ],
        ids=lambda line: line[:40],
    )
    def test_unreadable_lines_are_counted_not_raised(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "f.jsonl"
        path.write_text(line + '\n{"kind": "a"}\n')
        tail = JsonLinesTail(path)
        assert tail.read() == [{"kind": "a"}]
        assert tail.damaged == 1

    def test_what_roles_write_is_not_too_deep_however_many_items_it_has(self, tmp_path: Path) -> None:
        path = tmp_path / "f.jsonl"
        line = {"kind": "links", "links": [{"rank": rank, "flows": [{"bytes": [1, 2]}]} for rank in range(100)]}
        append(path, line)
        tail = JsonLinesTail(path)
        assert tail.read() == [line]
        assert tail.damaged == 0

    def test_a_long_line_is_left_out_while_it_grows(self, tmp_path: Path) -> None:
        path = tmp_path / "f.jsonl"
        path.write_bytes(b'{"kind": "a"}\n' + b"x" * (LONGEST_BYTES + 1))
        tail = JsonLinesTail(path)
        assert tail.read() == [{"kind": "a"}]
        with path.open("ab") as file:
            file.write(b'x{"kind": "b"}\n{"kind": "c"}\n')
        assert tail.read() == [{"kind": "c"}]
        assert tail.damaged == 1

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("\x1b[2J\x07", "\\x1b[2J\\x07"),
            ("\x7f\x9b31m", "\\x7f\\x9b31m"),
            ("a\rb", "a\\rb"),
            ("\u202egnp", "\\u202egnp"),
            ("\ud800", "\\ud800"),
            ('two\n\tlines, ü, 数, "\\"', 'two\n\tlines, ü, 数, "\\"'),
        ],
    )
    def test_codes_that_steer_a_terminal_become_text(self, tmp_path: Path, text: str, shown: str) -> None:
        path = tmp_path / "f.jsonl"
        path.write_text(json.dumps({"kind": "a", text: [{"x": text}]}) + "\n")
        if text.isascii() or text.isprintable():
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": "a", text: [{"x": text}]}, ensure_ascii=False) + "\n")
        assert all(line == {"kind": "a", shown: [{"x": shown}]} for line in JsonLinesTail(path).read())


def test_text_of_a_role_cannot_steer_a_terminal(folder: RunFolder, recorder: Recorder) -> None:
    """Not in the live view, the summary, or the events."""
    detail, error = "\x1b[31mred", "\x1b]0;title\x07"
    line = {"kind": "degraded", "rank": 0, "time_s": START_S, "what": "data", "detail": detail}
    append(folder.worker_file(0), started(0), line, {"kind": "failed", "rank": 0, "time_s": START_S, "error": error})
    output = io.StringIO()
    view = LiveView(recorder.state, Console(file=output, width=200))
    recorder.poll()
    view.refresh()
    recorder.close()
    summary = write_summary(folder, recorder.config, Outcome(4, "a role failed", "none"))
    told = [output.getvalue(), *headline(summary), folder.summary_md.read_text(), folder.events_file.read_text()]
    assert not any("\x1b" in text or "\x07" in text for text in told)
    assert r"data (worker-0): \x1b[31mred" in output.getvalue()
    assert r"data (worker-0): \x1b[31mred" in summary["degraded"]
    assert r"failed: \x1b]0;title\x07" in folder.summary_md.read_text()


def test_windows_become_rows_as_they_arrive(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0))
    recorder.poll()
    assert [row["window"] for row in rows(folder.windows_csv)] == ["0"]
    append(folder.worker_file(1), started(1), window(1, 0, loss=None))  # a file that appears late
    recorder.poll()
    recorder.poll()
    found = rows(folder.windows_csv)
    assert [(row["rank"], row["window"]) for row in found] == [("0", "0"), ("1", "0")]
    assert found[0]["compute_s"] == "0.5"
    assert found[1]["loss"] == ""  # unknown, not 0 and not "nan"
    assert found[0]["memory_bytes"] == ""


def test_plan_row_says_when_all_workers_had_it(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.journal_file, plan(1, [80, 48], reward=0.25, proposed=[90, 48]))
    append(folder.worker_file(0), plan_applied(0, 1, [80, 48]))
    recorder.poll()
    assert rows(folder.plans_csv) == []  # worker 1 has not switched
    append(folder.worker_file(1), plan_applied(1, 1, [80, 48]))
    recorder.poll()
    recorder.poll()
    (row,) = rows(folder.plans_csv)
    assert row["version"] == "1"
    assert row["status"] == "applied"
    assert row["applied_iteration"] == str(WINDOW + 3)
    assert float(row["applied_s"]) - START_S == pytest.approx(1.2)  # the later of the two
    assert (row["batch_0"], row["batch_1"], row["global_batch"]) == ("80", "48", "128")
    assert (row["proposed_0"], row["proposed_1"]) == ("90", "48")
    assert row["reward"] == "0.25"


def test_overtaken_and_unfinished_plans_are_told_apart(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.journal_file, *(plan(version, [64 + version, 64]) for version in (1, 2, 3)))
    for rank in (0, 1):
        append(folder.worker_file(rank), plan_applied(rank, 2, [66, 64]))
    append(folder.worker_file(0), plan_applied(0, 3, [67, 64]))
    recorder.close()
    assert [(row["version"], row["status"]) for row in rows(folder.plans_csv)] == [
        ("1", "superseded"),
        ("2", "applied"),
        ("3", "pending"),
    ]
    assert rows(folder.plans_csv)[2]["applied_s"] == ""
    assert [applied.version for applied in recorder.state.arbitrator.applied_plans()] == [2]


def test_plan_whose_journal_line_comes_after_its_use(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.worker_file(0), plan_applied(0, 1, [80, 48]))
    recorder.poll()
    append(folder.journal_file, plan(1, [80, 48], reward=1.0))
    append(folder.worker_file(1), plan_applied(1, 1, [80, 48]))
    recorder.poll()
    (row,) = rows(folder.plans_csv)
    assert (row["status"], row["reward"]) == ("applied", "1.0")


def test_applied_plan_without_any_journal_is_still_recorded(folder: RunFolder, recorder: Recorder) -> None:
    for rank in (0, 1):
        append(folder.worker_file(rank), plan_applied(rank, 4, [80, 48]))
    recorder.close()
    (row,) = rows(folder.plans_csv)
    assert (row["version"], row["status"], row["window"]) == ("4", "applied", "")


def test_observed_plans_are_rows_but_never_in_force(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.journal_file, plan(1, [80, 48]) | {"kind": "observed"}, plan(1, [81, 48]) | {"kind": "observed"})
    recorder.poll()
    recorder.close()
    assert [(row["status"], row["batch_0"]) for row in rows(folder.plans_csv)] == [
        ("observed", "80"),
        ("observed", "81"),
    ]
    assert recorder.state.arbitrator.applied_plans() == []


def test_state_changes_are_events_with_their_source(folder: RunFolder, recorder: Recorder) -> None:
    recorder.event("phase", name="training")
    append(folder.worker_file(0), started(0), window(0, 0), evaluation(3, 0.8))
    append(
        folder.worker_file(0), {"kind": "degraded", "rank": 0, "time_s": 1.0, "what": "arbitrator", "detail": "gone"}
    )
    append(folder.journal_file, {"kind": "lease_lost", "time_s": 2.0, "rank": 1}, {"kind": "update", "time_s": 2.0})
    recorder.close()
    found = events(folder)
    assert [(event["source"], event["kind"]) for event in found] == [
        ("launcher", "phase"),
        ("arbitrator", "lease_lost"),
        ("worker-0", "started"),
        ("worker-0", "evaluation"),
        ("worker-0", "degraded"),
    ]
    assert found[0]["time_s"] == START_S
    assert found[4]["time_s"] == 1.0


def test_pauses_are_counted_as_they_go_on(folder: RunFolder, recorder: Recorder) -> None:
    """Only those of rank 0; every worker has the same."""
    state = recorder.state
    append(folder.worker_file(0), started(0), {"kind": "paused", "rank": 0, "time_s": START_S + 10})
    append(folder.worker_file(1), started(1), {"kind": "paused", "rank": 1, "time_s": START_S + 11})
    recorder.poll()
    assert (state.progress.paused_s(START_S + 9), state.progress.paused_s(START_S + 13)) == (0.0, 3.0)
    append(folder.worker_file(0), {"kind": "resumed", "rank": 0, "time_s": START_S + 14})
    recorder.poll()
    assert state.progress.paused_s(START_S + 100) == 4.0
    append(folder.worker_file(0), {"kind": "paused", "rank": 0, "time_s": START_S + 20})
    recorder.poll()
    assert state.progress.paused_s(START_S + 21) == 5.0
    assert {event["kind"] for event in events(folder)} == {"started"}


def test_lines_of_another_form_are_events_and_the_rest_is_read(folder: RunFolder, recorder: Recorder) -> None:
    folder.worker_file(0).write_text("half a li\n")
    append(folder.worker_file(0), {"kind": "window", "rank": 0}, {"kind": "plan_applied", "rank": 7, "version": "x"})
    append(folder.worker_file(0), {"kind": "news", "rank": 0, "time_s": 1.0}, window(0, 0))
    recorder.poll()
    kinds = [event["kind"] for event in events(folder)]
    assert kinds == ["unreadable_line", "news", "damaged_lines"]
    assert len(rows(folder.windows_csv)) == 1


def test_state_follows_a_worker(folder: RunFolder, recorder: Recorder) -> None:
    worker = recorder.state.workers[1]
    assert worker.phase == "starting"
    append(folder.worker_file(1), started(1), window(1, 0))
    recorder.poll()
    assert (worker.phase, worker.batch_size, worker.iteration) == ("running", 64, WINDOW)
    assert worker.samples_per_s == 64 * WINDOW
    assert worker.shares["wait"] == pytest.approx(0.3)
    append(folder.worker_file(1), plan_applied(1, 1, [80, 48]))
    append(folder.worker_file(1), {"kind": "stall", "rank": 1, "iteration": 25, "waited_s": 10.0, "missing": [0]})
    recorder.poll()
    assert (worker.previous_batch_size, worker.batch_size, worker.phase) == (64, 48, "waits for 0")
    assert recorder.state.arbitrator.plan_version == 1
    append(folder.worker_file(1), window(1, 1, batch_size=48))
    recorder.poll()
    assert worker.phase == "running"
    append(folder.worker_file(1), finished(1, 100, 5000, 9.0))
    recorder.poll()
    assert (worker.phase, worker.iteration, worker.samples) == ("finished", 100, 5000)


class TestRolesAndLinks:
    def test_links_become_rows_of_their_own_tables(self, folder: RunFolder, recorder: Recorder) -> None:
        append(folder.journal_file, links(7, [link(0), link(1, slow="link")], [server()], time_s=START_S + 8))
        recorder.close()
        found = rows(folder.links_csv)
        assert [(row["window"], row["rank"], row["slow"]) for row in found] == [("7", "0", ""), ("7", "1", "link")]
        assert found[1]["push_bytes_per_s"] == "12000000.0"
        assert found[0]["pull_rtt_s"] == ""  # unknown
        (row,) = rows(folder.servers_csv)
        assert (row["name"], row["window"], row["cpu_ratio"], row["throttled"]) == ("server-0", "7", "0.7", "")
        assert float(row["time_s"]) == START_S + 8

    def test_state_of_links_and_servers(self, folder: RunFolder, recorder: Recorder) -> None:
        append(folder.worker_file(0), started(0), window(0, 0, retransmits_per_s=3.0, network_source="ebpf"))
        append(folder.journal_file, links(0, [link(0, slow="link"), link(1, slow="link")], [server()]))
        recorder.poll()
        worker = recorder.state.workers[0]
        assert worker.network.network_source == "ebpf"
        assert (worker.retransmits_per_s, worker.slow) == (5.0, "link")
        assert recorder.state.workers[1].slow == ""  # it has not started
        assert recorder.state.servers["server-0"].unread_bytes == 2e5
        append(folder.journal_file, links(1, [link(0)], [server(unread_bytes=None)]))
        recorder.poll()
        assert worker.slow == ""
        assert recorder.state.servers["server-0"].unread_bytes != 2e5

    def test_reports_of_servers_without_an_arbitrator(self, folder: RunFolder, recorder: Recorder) -> None:
        queues = [flow("s:1", "w:1", unread_bytes=5.0), flow("s:1", "w:2", unread_bytes=6.0, unsent_bytes=None)]
        append(folder.role_file("server-0"), role("server-0", queues))
        append(folder.role_file("worker-0"), role("worker-0"))
        recorder.poll()
        assert list(recorder.state.servers) == ["server-0"]
        assert recorder.state.servers["server-0"].unread_bytes == 11.0
        assert recorder.state.servers["server-0"].system.cpu_cores == 2.0

    def test_they_are_no_events_but_fallbacks_are(self, folder: RunFolder, recorder: Recorder) -> None:
        append(folder.journal_file, links(0, [link(0)], [server()]))
        lost = {"kind": "degraded", "time_s": START_S, "what": "network metrics", "detail": "no root: sockdiag"}
        append(folder.role_file("server-0"), role("server-0"), lost)
        recorder.close()
        (event,) = events(folder)
        assert (event["source"], event["kind"], event["detail"]) == ("server-0", "degraded", "no root: sockdiag")

    @pytest.mark.parametrize(
        "line",
        [
            {"kind": "links", "window": 1, "links": [{"push_rtt_s": 1.0}], "servers": []},
            {"kind": "links", "window": 1, "links": [link(0, rtt_s="x", age_s="x")], "servers": []},
            {"kind": "links", "window": 1, "links": [], "servers": [{"name": "server-0", "system": None}]},
            {"kind": "links", "window": 1, "links": 3, "servers": []},
        ],
    )
    def test_lines_of_another_form_end_nothing(
        self, folder: RunFolder, recorder: Recorder, line: dict[str, Any]
    ) -> None:
        append(folder.journal_file, line, links(2, [link(1)]))
        recorder.poll()
        assert len(events(folder)) == 1 and events(folder)[0]["kind"] in ("unreadable_line", "damaged_lines")
        assert [row["window"] for row in rows(folder.links_csv)] == ["2"]


def test_worker_that_starts_again_keeps_its_first_start(folder: RunFolder, recorder: Recorder) -> None:
    append(
        folder.worker_file(0),
        started(0),
        window(0, 0),
        {"kind": "failed", "rank": 0, "error": "killed", "iteration": 20},
    )
    recorder.poll()
    assert recorder.state.workers[0].phase == "failed"
    append(folder.worker_file(0), started(0, batch_size=70, time_s=START_S + 60, iteration=20))
    recorder.poll()
    worker = recorder.state.workers[0]
    assert (worker.phase, worker.error, worker.started_s) == ("running", None, START_S)
    assert (worker.first_batch_size, worker.batch_size) == (64, 70)


def test_second_recorder_appends_without_a_second_header(folder: RunFolder, recorder: Recorder) -> None:
    recorder.close()
    Recorder(folder, config(2)).close()
    assert len(folder.windows_csv.read_text().splitlines()) == 1


def test_state_of_a_silent_worker(folder: RunFolder, recorder: Recorder) -> None:
    append(folder.worker_file(0), started(0))
    recorder.poll()
    append(folder.journal_file, {"kind": "lease_lost", "rank": 0, "time_s": 1.0})
    recorder.poll()
    assert recorder.state.workers[0].phase == "silent"
    append(folder.journal_file, {"kind": "lease_back", "rank": 0, "time_s": 1.0})
    recorder.poll()
    assert recorder.state.workers[0].phase == "running"
