"""The sums of `Comm`: buffers in pieces, one message each way; shared memory within a host."""

from __future__ import annotations

from importlib import resources

from dynamix_ps.byteps_build.edits.base import Edit

_SOURCES = resources.files("dynamix_ps.byteps_build") / "sources"
_WHY = "sums of Comm: a buffer in pieces, one message each way, shared memory within a host"
_TEST = "test_race.py"

_ADDED = (
    ("pieces.h", "3rdparty/ps-lite/include/ps"),
    ("sums.h", "byteps/common"),
    ("segment.h", "byteps/common"),
    ("host_push.h", "byteps/common"),
    ("host_sum.h", "byteps/common"),
    ("exchange.cc", "byteps/common"),
    ("round_table.h", "byteps/server"),
)

EDITS = (
    *(
        Edit(f"{folder}/{name}", "", (_SOURCES / name).read_text(encoding="utf-8"), _WHY, _TEST)
        for name, folder in _ADDED
    ),
    Edit(
        "setup.py",
        """               'byteps/common/core_loops.cc',
""",
        """               'byteps/common/core_loops.cc',
               'byteps/common/exchange.cc',
""",
        _WHY,
        _TEST,
    ),
    Edit(
        "byteps/server/server.cc",
        """#include "queue.h"
""",
        """#include "queue.h"
#include "round_table.h"
""",
        _WHY,
        _TEST,
    ),
    Edit(
        "byteps/server/server.cc",
        """  // init server instance
  byteps_server_ = """,
        """  RoundTable rounds;
  ps::PieceTransport::Receiver() = &rounds;

  // init server instance
  byteps_server_ = """,
        _WHY,
        _TEST,
    ),
)
