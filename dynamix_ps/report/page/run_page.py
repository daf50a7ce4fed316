"""`report.html` of a run folder: the run on one page, which needs no other file and no network."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Config
from dynamix_ps.report.page import html_text as html
from dynamix_ps.report.page.charts import charts_of_run, drawn
from dynamix_ps.report.page.story import how_it_ended, sentences, tiles
from dynamix_ps.report.plots.history import History, read_history
from dynamix_ps.report.summary_text import about_waiting, came_and_went, figures, worker_table
from dynamix_ps.run_record.run_folder import RunFolder

ALL_RUNS = html.PageLink("all runs", "../")  # in `dynamix ui`


def write_page(folder: RunFolder, config: Config, summary: dict[str, Any]) -> bool:
    """Write the page; whether it was written. `summary`: what summary.json holds.

    What goes wrong, other than that the file cannot be written, is appended to events.jsonl as a `degraded` event.
    Raises OSError.
    """
    try:
        content = run_page(summary, config, read_history(folder, config))
    except OSError:
        raise
    except Exception as error:
        folder.report_html.unlink(missing_ok=True)
        event = {"time_s": time.time(), "source": "launcher", "kind": "degraded", "what": "page"}
        with folder.events_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event | {"detail": f"no report.html: {type(error).__name__}: {error}"}) + "\n")
        return False
    folder.report_html.write_text(content, encoding="utf-8")
    return True


def run_page(
    summary: dict[str, Any], config: Config, history: History, live: bool = False, thinned: Sequence[str] = ()
) -> str:
    """The page of one run.

    Args:
        live: `dynamix ui` serves it, beside a page with all runs.
        thinned: why figures are estimates, if they are; those of the whole run are left out then.
    """
    charts = drawn(charts_of_run(history))
    body = [
        html.link(ALL_RUNS) if live else "",
        f"<h1>{html.text(summary['run'])}</h1>\n",
        html.paragraphs([how_it_ended(summary)], {0: "good", None: ""}.get(summary["exit_code"], "bad")),
        html.paragraphs([*sentences(summary), *thinned], "story"),
        html.tile_row(tiles(summary)),
        html.chart_places(charts),
        html.heading("Who came and went"),
        _comings(summary),
        html.heading("Degraded"),
        html.bullets(summary["degraded"], "Nothing: everything worked as configured."),
        html.heading("Workers"),
        html.table(*worker_table(summary["per_worker"], summary["counted"])),
        html.paragraphs([about_waiting(summary["heterogeneity"])] if about_waiting(summary["heterogeneity"]) else []),
        html.heading("Settings" if thinned else "Settings and figures"),
        "" if thinned else html.table((), figures(summary)),
        html.details("The cluster file, with every default", settings(config)),
    ]
    return html.page(summary["run"], body, charts, live)


def settings(config: Config) -> str:
    """The cluster file without the values of `env`, which may be passwords: people pass a page on."""
    hidden = dict.fromkeys(config.env, "(not shown)")
    return dump_config(config.model_copy(update={"env": hidden}))


def _comings(summary: dict[str, Any]) -> str:
    happened = [text for _, text in came_and_went(summary)]
    whole = "there from the beginning to the end" if summary["exit_code"] is not None else "there all the time"
    return html.bullets(happened, f"Nobody: all workers and servers were {whole}.")
