"""Files that come with this package: examples, their cluster file, and a board for Grafana. A checkout has them too."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).with_name("shipped_files")  # setup.py copies them there
_CHECKOUT = Path(__file__).parents[1]
CLUSTER_FILE = "cluster.yaml"


def examples() -> dict[str, Path]:
    """Scripts of one page, by name."""
    return {file.stem: file for file in sorted(_folder("examples").glob("*.py"))}


def example_cluster_file() -> Path:
    """With it every example trains two uneven workers."""
    return _folder("examples") / CLUSTER_FILE


def grafana_board() -> Path:
    """To be imported into Grafana."""
    return _folder("docs/grafana") / "dynamix.json"


def _folder(name: str) -> Path:
    return (_INSTALLED if _INSTALLED.exists() else _CHECKOUT) / name
