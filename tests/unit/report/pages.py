"""What a page of a run says, and what the tables of the run say, for tests that compare them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import Any

from dynamix_ps.run_record.run_folder import RunFolder


def charts_in(page: str) -> dict[str, dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page)
    assert found
    return {chart["title"]: chart for chart in json.loads(found[1])}


def words_of(page: str) -> str:
    """Without head, scripts and tags."""
    body = re.sub(r"<script.*?</script>", "", page.partition("<body>")[2], flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def columns(folder: RunFolder, rank: int, *names: str) -> Iterator[tuple[float, ...]]:
    """Columns of windows.csv, of one worker."""
    with folder.windows_csv.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["rank"]) == rank]
    return zip(*([float(row[name]) for row in rows] for name in names), strict=True)
