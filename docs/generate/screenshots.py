"""`python -m docs.generate.screenshots [RUNS]`: pictures of this site and of the runs in a folder, for docs/images.

The site must be there: `make docs` builds it. Without RUNS, pictures of the site alone are made.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from docs.generate.chromium import chromium, run
from docs.generate.pages import DOCS, ROOT
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.report.run_list import runs_in
from dynamix_ps.report.ui.site import Site

COLOURS = 256  # of a picture, which makes it half as large
MOST_BYTES = 100_000  # of a picture


class Picture(NamedTuple):
    """A page in a window of this size."""

    name: str
    address: str
    width: int = 1280
    height: int = 860


def of_the_site(site: Path) -> list[Picture]:
    """Raises EnvironmentNotReady if a page is not there."""
    shown = [
        Picture("site-get-started", "get-started.html"),
        Picture("site-tutorial", "tutorial.html"),
        Picture("site-watching", "watching.html"),
        Picture("site-cluster-file", "cluster-file.html", 390, 844),  # a phone
    ]
    for page in shown:
        if not (site / page.address).exists():
            raise EnvironmentNotReady(f"{site / page.address}: no such file; build the site: make docs")
    return [page._replace(address=f"file://{site / page.address}") for page in shown]


def of_runs(runs: Path, address: str) -> list[Picture]:
    """The list of all runs, and the newest that has finished. `address`: of `dynamix ui`."""
    finished = next((run.folder.path.name for run in runs_in(runs) if run.end == "finished"), None)
    if finished is None:
        raise UsageError(f"{runs}: none of its runs has finished; give a folder with one that has")
    return [Picture("ui", address, height=280), Picture("run-page", f"{address}run/{finished}")]


def take(program: str, picture: Picture) -> Path:
    """Make a picture, or make it anew; returns its file. Raises EnvironmentNotReady if it is too large."""
    file = DOCS / "images" / f"{picture.name}.png"
    size = f"--window-size={picture.width},{picture.height}"
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "picture.png")
        run(program, Path(folder), size, "--hide-scrollbars", f"--screenshot={raw}", picture.address)
        with Image.open(raw) as whole:
            whole.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    if (size_bytes := file.stat().st_size) > MOST_BYTES:
        raise EnvironmentNotReady(f"{file}: {size_bytes:,} bytes, at most {MOST_BYTES:,}; show less of the page")
    return file


def main(arguments: Sequence[str]) -> int:
    """Make all pictures that can be made. Raises UsageError, EnvironmentNotReady."""
    if len(arguments) > 1:
        raise UsageError("usage: python -m docs.generate.screenshots [RUNS]")
    if (program := chromium()) is None:
        raise EnvironmentNotReady("no Chromium is installed, which makes the pictures (Debian: apt install chromium)")
    wanted = of_the_site(ROOT / "site")
    if arguments:
        _, address = Site(Path(arguments[0])).serve(0)
        wanted += of_runs(Path(arguments[0]), address)
    for picture in wanted:
        print(take(program, picture))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1:])))
