"""`dynamix examples`: the scripts of one page that come with this package."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from dynamix_ps import shipped
from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.data_planes import WITHOUT_BUILD
from dynamix_ps.errors import EnvironmentNotReady, UsageError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder of the copies (default: here).",
)
def command(name: str | None, to: Path) -> None:
    """Copy an example and a cluster file for it; without NAME, list the examples.

    \b
    Example:
      dynamix examples torch_cnn
      dynamix launch -c cluster.yaml -- python torch_cnn.py
    """
    found = shipped.examples()
    if name is None:
        for one, file in found.items():
            about = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition(".")[0]
            click.echo(f"{one:16} {' '.join(about.split())}")
        return
    if name not in found:
        raise UsageError(f"no example {name!r}; there are {', '.join(found)}")
    _write(to / found[name].name, found[name].read_text(encoding="utf-8"))
    _write(to / shipped.CLUSTER_FILE, _cluster_file())
    click.echo(f"Next: dynamix launch -c {to / shipped.CLUSTER_FILE} -- python {to / found[name].name}")


def _cluster_file() -> str:
    text = shipped.example_cluster_file().read_text(encoding="utf-8")
    if not installed_info().version:
        text += f"\ncomm: {WITHOUT_BUILD}                       # BytePS is not built here (dynamix build-byteps)\n"
    return text


def _write(file: Path, text: str) -> None:
    """Raises UsageError where another file is, and EnvironmentNotReady where it cannot be written."""
    try:
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise UsageError(f"{file} is there already, with other contents; name another folder by --to")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"written: {file}")
