"""A small, explained change to one file of the BytePS source package, checked to match exactly once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dynamix_ps.errors import BuildError

_SOURCES = resources.files("dynamix_ps.byteps_build") / "sources"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `old`, which occurs exactly once in `file`, by `new`. An empty `old` creates a new file."""

    file: str
    old: str
    new: str
    why: str
    needed_by: str  # the test or step that fails without it


def added(file: str, why: str, needed_by: str) -> Edit:
    """The edit that creates `file`: a copy of the file with its name in sources/."""
    text = (_SOURCES / file.rpartition("/")[2]).read_text(encoding="utf-8")
    return Edit(file, "", text, why, needed_by)


def apply_edits(tree: Path, edits: Iterable[Edit]) -> None:
    """Apply `edits` in order to the unpacked source package in `tree`.

    Raises BuildError with file and edit if one does not match exactly once.
    """
    for edit in edits:
        path = tree / edit.file
        if not edit.old:
            if path.exists():
                raise _mismatch(edit, "the file exists already")
            path.write_text(edit.new, encoding="utf-8")
            continue
        if not path.is_file():
            raise _mismatch(edit, "there is no such file")
        text = path.read_text(encoding="utf-8")
        found = text.count(edit.old)
        if found != 1:
            raise _mismatch(edit, f"its old text occurs {found} times, expected once")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def _mismatch(edit: Edit, what: str) -> BuildError:
    return BuildError(
        f"edit of {edit.file} ({edit.why!r}) does not fit the BytePS sources: {what}.\n"
        "Next: the pinned source package and the edits in dynamix_ps/byteps_build/edits/ belong together; "
        "restore both to the same version."
    )
