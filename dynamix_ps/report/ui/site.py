"""Which page is at which address. Addresses begin with a secret, as other users of the machine can connect too."""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from dynamix_ps.report.http_server import HttpServer, Request, Response
from dynamix_ps.report.page import html_text as html
from dynamix_ps.report.page.run_page import ALL_RUNS, run_page
from dynamix_ps.report.run_list import HEAD, ListedRun, has_ended, runs_in
from dynamix_ps.report.run_report import read_run
from dynamix_ps.report.ui.sampled_lines import sampled
from dynamix_ps.run_record.run_folder import RunFolder

FRESH_S = 2.0  # a page is sent again until it is so old (chosen by us)
REST = 10  # or so many times what it took to make it, so that pages take no more of a core than one part in this
MOST_MADE = 8  # pages that are kept, of at most 2 MB
MOST_RUNS = 500  # of the list: the newest
_HOST = "127.0.0.1"
_OUR_NAMES = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?")  # with the port of an ssh tunnel too
_FIELDS = ("Cache-Control: no-store", "Referrer-Policy: no-referrer", "X-Content-Type-Options: nosniff")
_SANDBOX = "Content-Security-Policy: sandbox allow-scripts"  # a file that others may have written reads no other page


class Site:
    """The pages of a folder of runs; writes nothing. `clock` counts seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises UsageError if it is not a folder of runs."""
        runs_in(folder)
        self._folder = folder
        self._clock = clock
        self._made: dict[str, tuple[float, Response]] = {}  # by path, with the time until which it is sent again
        self._secret = secrets.token_urlsafe(16)

    def serve(self, port: int) -> tuple[HttpServer, str]:
        """Begin to answer; the server, and the address of the list. Raises OSError if the port is taken."""
        server = HttpServer(_HOST, port, self.answer)
        return server, f"http://{_HOST}:{server.port}/{self._secret}/"

    def answer(self, request: Request) -> Response:
        """A page; 404 for whoever lacks the secret, or calls us by the name of another server (DNS rebinding)."""
        secret, _, path = request.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(secret.encode(), self._secret.encode())
        if not known or not _OUR_NAMES.fullmatch(request.host):
            return Response("text/plain", b"use the address that `dynamix ui` printed\n", "404 Not Found", _FIELDS)
        began_s = self._clock()
        until_s, response = self._made.get(path, (began_s, None))
        if response is None or until_s <= began_s:
            self._made.pop(path, None)
            response = self._page(path)
            ended_s = self._clock()
            self._made[path] = ended_s + max(FRESH_S, REST * (ended_s - began_s)), response
            if len(self._made) > MOST_MADE:
                del self._made[next(iter(self._made))]
        return response

    def _page(self, path: str) -> Response:
        try:
            if not path:
                return _html(_list_page(runs_in(self._folder)))
            name = unquote(path.removeprefix("run/"))
            if not path.startswith("run/") or "/" in name or not RunFolder(self._folder / name).workers_dir.is_dir():
                return _html(_message("There is no such run."), "404 Not Found")
            return _run(RunFolder(self._folder / name))
        except Exception as error:  # such as a file that cannot be read, or a damaged record
            return _html(_message(f"This cannot be shown now: {type(error).__name__}: {error}"))


def _run(folder: RunFolder) -> Response:
    """The page that an ended run has written; else what is known so far."""
    if has_ended(folder) and folder.report_html.exists():
        return Response("text/html; charset=utf-8", folder.report_html.read_bytes(), fields=(*_FIELDS, _SANDBOX))
    lines, stride = sampled(folder)
    run = read_run(folder, lines)
    thinned = [f"The run is long: of {stride} windows one is read, so sums are estimates."] if stride > 1 else []
    return _html(run_page(run.summary, run.config, run.history, live=True, thinned=thinned))


def _list_page(runs: Sequence[ListedRun]) -> str:
    """All runs, the newest first."""
    rows: list[Sequence[str | html.PageLink]] = [
        (_link(name), *rest) for name, *rest in (run.cells for run in runs[:MOST_RUNS])
    ]
    older = [f"{len(runs) - MOST_RUNS:,} older runs are not listed."] if len(runs) > MOST_RUNS else []
    shown = html.table(HEAD, rows) if runs else html.paragraphs(["There is no run in this folder yet."])
    return html.page("runs", ["<h1>Runs</h1>\n", shown, html.paragraphs(older)], live=True)


def _link(name: str) -> html.PageLink:
    return html.PageLink(name, f"run/{quote(name, safe='')}")


def _message(words: str) -> str:
    return html.page("run", [html.link(ALL_RUNS), html.paragraphs([words])], live=True)


def _html(page: str, status: str = "200 OK") -> Response:
    return Response("text/html; charset=utf-8", page.encode(), status, _FIELDS)
