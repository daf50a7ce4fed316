"""The sources of the sums with stand-ins for BytePS and ps-lite, for programs that play what surrounds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from dynamix_ps.byteps_build.recipe import HERE

STUBS = Path(__file__).parent / "elastic"  # the folder of stubs.h
_PLACES = {
    "ps": ("pieces.h",),
    "byteps/common": (
        "exchange.h",
        "elastic_exchange.h",
        "lane.h",
        "host_push.h",
        "host_sum.h",
        "segment.h",
        "sums.h",
        "wire.h",
    ),
    "byteps/server": ("round_table.h",),
}
_STUBBED = ("ps/ps.h", "ps/sarray.h", "dmlc/logging.h", "byteps/common/common.h", "byteps/common/half.h")


def write_tree(folder: Path, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
    """`replaced`: texts in the sources, each found once, and what takes their places."""
    left = set(replaced)
    for place, names in _PLACES.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            text = (HERE / "sources" / name).read_text()
            for found in [one for one in replaced if one in text]:
                assert found in left and text.count(found) == 1, f"more than once in the sources: {found}"
                left.discard(found)
                text = text.replace(found, replaced[found])
            (folder / place / name).write_text(text)
    assert not left, f"not in the sources: {left}"
    for stub in _STUBBED:
        (folder / stub).parent.mkdir(parents=True, exist_ok=True)
        (folder / stub).write_text('#include "stubs.h"\n')


def switched(breaks: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each text, and what is there instead if the environment variable BREAK has the number of its break, from 1 on."""
    texts: dict[str, str] = {}
    for number, (text, instead) in enumerate(breaks, 1):
        now = texts.get(text, text)
        if text.endswith(";"):
            texts[text] = f"{{ if (ps::Break() == {number}) {{ {instead} }} else {{ {now} }} }}"
        else:
            texts[text] = f"(ps::Break() == {number} ? ({instead}) : ({now}))"
    return texts
