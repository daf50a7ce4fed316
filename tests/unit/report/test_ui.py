"""`dynamix ui`: who sees what, what is read of a long run, and a page that updates in a browser."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamix_ps.report.http_server import HttpServer, Request, Response
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.run_report import read_run, report_run
from dynamix_ps.report.summary import read_told
from dynamix_ps.report.ui import sampled_lines, site
from dynamix_ps.report.ui.sampled_lines import sampled
from dynamix_ps.report.ui.site import Site
from dynamix_ps.run_record.run_folder import RunFolder
from tests.browser import Browser
from tests.launching import environment
from tests.unit.report.pages import charts_in, columns, words_of
from tests.unit.synthetic_run import START_S, append, config, long_run, started, whole_run, window

LIMIT_S = 60.0


class Clock:
    """Goes on by `step_s` with every look at it."""

    def __init__(self) -> None:
        self.now_s, self.step_s = 0.0, 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


class Seen:
    """A site as a browser with the right address sees it, once in a minute."""

    def __init__(self, base: Path) -> None:
        self.clock = Clock()
        self.site = Site(base, self.clock)
        self.server, self.address = self.site.serve(0)
        self.server.close()
        self.root = "/" + self.address.split("/", 3)[3]

    def answer(self, path: str, host: str = "localhost:8000", after_s: float = 60) -> Response:
        self.clock.now_s += after_s
        return self.site.answer(Request(self.root + path, host))

    def text(self, path: str, after_s: float = 60) -> str:
        return self.answer(path, after_s=after_s).body.decode()


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path)


@pytest.fixture
def run(folder: RunFolder) -> RunFolder:
    """Two workers that go on after three windows."""
    folder.write_config(config(2))
    for rank in range(2):
        append(folder.worker_file(rank), started(rank), *(window(rank, number) for number in range(3)))
    return folder


class TestWhoSees:
    def test_only_who_has_the_whole_address(self, seen: Seen, run: RunFolder) -> None:
        assert seen.address.startswith("http://127.0.0.1:") and len(seen.root) > 20
        assert seen.answer("").status == seen.answer(f"run/{run.path.name}").status == "200 OK"
        for path in ("/", seen.root[:-2] + "/", "/metrics", f"/run/{run.path.name}", "/é/"):
            refused = seen.site.answer(Request(path, "localhost"))
            assert refused.status == "404 Not Found" and run.path.name.encode() not in refused.body

    @pytest.mark.parametrize("host", ["", "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1:x"])
    def test_nobody_by_the_name_of_another_server(self, seen: Seen, host: str) -> None:
        assert seen.answer("", host).status == "404 Not Found"

    def test_the_address_stays_here(self, seen: Seen) -> None:
        fields = seen.answer("").fields
        assert "Referrer-Policy: no-referrer" in fields and "Cache-Control: no-store" in fields

    @pytest.mark.parametrize(
        "path", ["run/none", "run/", "run/..", "run/..%2f..", "run/%00", "events.jsonl", "run/a/b"]
    )
    def test_nothing_but_runs(self, seen: Seen, path: str) -> None:
        assert seen.answer(path).status == "404 Not Found" or "cannot be shown" in seen.text(path)

    def test_other_machines_reach_nothing(self, seen: Seen) -> None:
        server, _ = seen.site.serve(0)
        with server._socket as listening:
            assert listening.getsockname()[0] == "127.0.0.1"
            server.close()


class TestPages:
    def test_all_runs_lead_to_their_pages(self, seen: Seen, run: RunFolder) -> None:
        other = RunFolder(run.path.parent / "a b#<i>")
        other.make()
        page = seen.text("")
        addresses = re.findall(r'<a href="([^"]*)">', page)
        assert sorted(addresses) == ["run/a%20b%23%3Ci%3E", f"run/{run.path.name}"]
        assert [seen.answer(address).status for address in addresses] == ["200 OK"] * 2
        assert "<i>" not in page and "goes on" in words_of(page)

    def test_an_empty_folder_has_none_yet(self, seen: Seen) -> None:
        assert "no run in this folder yet" in seen.text("")

    def test_of_a_run_that_goes_on_what_is_known_so_far(self, seen: Seen, run: RunFolder) -> None:
        append(run.worker_file(0), window(0, 3, trained_ratio=0.25), window(0, 4, trained_ratio=0.5))
        before = sorted(run.path.rglob("*"))
        words = words_of(seen.text(f"run/{run.path.name}"))
        assert "So far 2 workers trained" in words
        assert "50 % done 2.0 s to go, about" in words
        assert sorted(run.path.rglob("*")) == before

    def test_a_run_that_has_ended_has_its_own_page(self, seen: Seen, folder: RunFolder) -> None:
        folder.write_config(config(3))
        whole_run(folder)
        assert "data-live" in seen.text(f"run/{folder.path.name}")
        report_run(folder)
        ended = seen.answer(f"run/{folder.path.name}")
        assert ended.body == folder.report_html.read_bytes()
        assert any("sandbox" in field for field in ended.fields)

    def test_before_the_first_worker_begins_it_says_so(self, seen: Seen, folder: RunFolder) -> None:
        assert "no worker has begun to train" in seen.text(f"run/{folder.path.name}")
        folder.write_config(config(2))
        assert "no role has written anything yet" in words_of(seen.text(f"run/{folder.path.name}"))

    def test_a_page_is_made_again_only_after_a_rest(self, seen: Seen, run: RunFolder) -> None:
        path = f"run/{run.path.name}"
        seen.clock.step_s = 1  # so long it takes to make a page, and to ask for it
        first = seen.text(path)
        append(run.worker_file(0), window(0, 3))
        assert seen.text(path, after_s=site.REST - 2) == first
        assert seen.text(path, after_s=1) != first
        seen.clock.step_s = 0
        first = seen.text(path)
        append(run.worker_file(0), window(0, 4))
        assert seen.text(path, after_s=site.FRESH_S - 0.1) == first
        assert seen.text(path, after_s=0.1) != first

    def test_few_pages_are_kept(self, seen: Seen) -> None:
        for number in range(3 * site.MOST_MADE):
            seen.answer(f"run/{number}")
        assert len(seen.site._made) == site.MOST_MADE


class TestLongRuns:
    WORKERS = 4

    @pytest.fixture
    def long(self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
        folder.write_config(config(self.WORKERS))
        long_run(folder, 4000, self.WORKERS)
        monkeypatch.setattr(sampled_lines, "MOST_BYTES", 500_000)
        return folder

    def test_are_read_in_part_with_the_sums_of_all(self, long: RunFolder) -> None:
        lines, stride = sampled(long)
        assert stride == 16
        assert sum(told.line["kind"] == "window" for told in lines) == self.WORKERS * (1000 // stride)
        part, whole = (read_run(long, told).summary for told in (lines, read_told(long)))
        seen = 1000 // stride * stride
        assert part["iterations"] == seen * 20 and whole["iterations"] == 1000 * 20
        assert part["samples"] == pytest.approx(whole["samples"] * seen / 1000, rel=0.02)
        assert part["plans_applied"] == whole["plans_applied"] == 10
        assert part["per_worker"][0]["samples_per_s"] == pytest.approx(
            whole["per_worker"][0]["samples_per_s"], rel=0.02
        )
        history = read_run(long, lines).history
        assert history.workers[0].windows == history.workers[3].windows, "the same of all workers"

    def test_say_so_on_their_page(self, long: RunFolder) -> None:
        words = words_of(Seen(long.path.parent).text(f"run/{long.path.name}"))
        assert "of 16 windows one is read, so sums are estimates" in words
        assert "plans in force" not in words

    def test_other_lines_are_bounded_too(self, long: RunFolder) -> None:
        many = ({"kind": "stall", "rank": 1, "time_s": START_S + at, "text": "x" * 200} for at in range(5000))
        append(long.worker_file(1), *many)
        found = [told.line for told in sampled(long).lines if told.line["kind"] == "stall"]
        assert 100 < len(found) < 400
        apart = [after["time_s"] - before["time_s"] for before, after in itertools.pairwise(found)]
        assert len(set(apart)) == 1

    def test_a_short_run_is_read_whole(self, folder: RunFolder) -> None:
        whole_run(folder)
        recorded = {"source": "launcher", "kind": "degraded", "what": "here", "time_s": START_S}
        append(folder.events_file, recorded, recorded | {"source": "worker-0"})
        left_out = ("links", "kept", "role")
        told = [one for one in read_told(folder) if one.line["kind"] not in left_out]
        lines, stride = sampled(folder)
        assert stride == 1
        assert sorted(lines, key=lambda one: one.file) == sorted(told, key=lambda one: one.file)

    def test_damaged_lines_are_left_out(self, long: RunFolder) -> None:
        with long.worker_file(2).open("ab") as file:
            file.write(b'{"kind": "window", "window": 1007}\n\xff\n{"kind": "window", "window": 2}\n{"kind": "fin')
        assert len(sampled(long).lines) > 100
        assert Seen(long.path.parent).answer(f"run/{long.path.name}").status == "200 OK"


def test_the_command_serves_until_ctrl_c(run: RunFolder) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dynamix_ps.cli.main", "ui", str(run.path.parent)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as command:  # fmt: skip
        try:
            assert command.stdout and command.stderr
            address = command.stdout.readline().split()[0]
            with urllib.request.urlopen(address + f"run/{run.path.name}", timeout=LIMIT_S) as answer:
                assert "So far 2 workers trained" in words_of(answer.read().decode())
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address.rsplit("/", 2)[0] + "/", timeout=LIMIT_S)
            command.send_signal(signal.SIGINT)
            assert command.wait(LIMIT_S) == 0
            assert command.stderr.read() == ""
        finally:
            command.kill()


@pytest.mark.parametrize("kind", ["run", "none", "port"])
def test_what_cannot_be_served_is_an_error(run: RunFolder, kind: str) -> None:
    with_port, _ = Site(run.path.parent).serve(0)
    arguments = {
        "run": [str(run.path)],
        "none": [str(run.path / "none")],
        "port": [str(run.path.parent), "--port", str(with_port.port)],
    }[kind]
    done = subprocess.run(
        [sys.executable, "-m", "dynamix_ps.cli.main", "ui", *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(),
    )  # fmt: skip
    with_port.close()
    assert done.returncode == (3 if kind == "port" else 2)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.slow
class TestInABrowser:
    @pytest.fixture
    def served(self, run: RunFolder) -> Iterator[tuple[str, list[str]]]:
        """The address, and what is asked for; the second request for the run's page finds one more window."""
        asked: list[str] = []
        clock = Clock()
        here = Site(run.path.parent, clock)

        def answer(request: Request) -> Response:
            asked.append(request.path)
            clock.now_s += 60
            if asked.count(request.path) == 2:
                for rank in range(2):
                    append(run.worker_file(rank), window(rank, 3, 96))
            return here.answer(request)

        server = HttpServer("127.0.0.1", 0, answer)
        yield f"http://127.0.0.1:{server.port}/{here._secret}/", asked
        server.close()

    @pytest.mark.parametrize("width", [390, 1280])
    def test_the_page_of_a_run_updates(
        self, run: RunFolder, browser: Browser, served: tuple[str, list[str]], width: int
    ) -> None:
        address, asked = served
        shown = browser.show(f"{address}run/{run.path.name}", width)
        assert shown.console == []
        assert len(asked) >= 2
        Recorder(run, config(2)).close()
        rates = charts_in(shown.dom)["Samples per second"]["curves"][1]
        assert rates["y"] == [samples / seconds for samples, seconds in columns(run, 0, "samples", "duration_s")]
        assert len(rates["y"]) == 4
        drawn = re.findall(r'<path d="M([^"HV]*)"', shown.dom)
        assert len(drawn[0].split("L")) == 4, "what is drawn is new too"
        assert "64 → 96" in words_of(shown.dom)

    def test_the_list_opens(self, run: RunFolder, browser: Browser, served: tuple[str, list[str]]) -> None:
        shown = browser.show(served[0])
        assert shown.console == []
        assert run.path.name in words_of(shown.dom)

    def test_a_page_whose_server_is_gone_says_so(
        self, run: RunFolder, browser: Browser, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        page = Seen(run.path.parent).text(f"run/{run.path.name}")
        file = tmp_path_factory.mktemp("page") / "page.html"
        file.write_text(page)
        assert 'data-live="away"' in browser.show(f"file://{file}").dom
