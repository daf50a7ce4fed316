"""The sources of the sums with stand-ins for BytePS and ps-lite, for programs that play what surrounds them."""

from __future__ import annotations

from pathlib import Path

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


def write_tree(folder: Path, without: str = "", instead: str = "") -> None:
    """`without`: a text in the sources, found once, that is replaced."""
    found = 0
    for place, names in _PLACES.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            text = (HERE / "sources" / name).read_text()
            if without:
                found += text.count(without)
                text = text.replace(without, instead)
            (folder / place / name).write_text(text)
    assert not without or found == 1, f"{found} times in the sources: {without}"
    for stub in _STUBBED:
        (folder / stub).parent.mkdir(parents=True, exist_ok=True)
        (folder / stub).write_text('#include "stubs.h"\n')
