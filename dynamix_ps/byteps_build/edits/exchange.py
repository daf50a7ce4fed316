"""The sums of `Comm`: buffers in pieces, one message each way; shared memory within a host."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_WHY = "sums of Comm: a buffer in pieces, one message each way, shared memory within a host"
_TEST = "test_race.py"
_ELASTIC = "test_workers_lost.py"

_ADDED = (
    "3rdparty/ps-lite/include/ps/pieces.h",
    "byteps/common/sums.h",
    "byteps/common/wire.h",
    "byteps/common/segment.h",
    "byteps/common/host_push.h",
    "byteps/common/host_sum.h",
    "byteps/common/lane.h",
    "byteps/common/exchange.h",
    "byteps/common/elastic_exchange.h",
    "byteps/common/exchange.cc",
    "byteps/server/round_table.h",
)

EDITS = (
    *(added(file, _WHY, _TEST) for file in _ADDED),
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
    added("byteps/server/elastic_server.cc", "workers may be lost while the others go on", _ELASTIC),
    Edit(
        "setup.py",
        """    server_lib.sources = ['byteps/server/server.cc',
""",
        """    server_lib.sources = ['byteps/server/server.cc',
                          'byteps/server/elastic_server.cc',
""",
        "workers may be lost while the others go on",
        _ELASTIC,
    ),
    Edit(
        "byteps/server/server.cc",
        """  // init server instance
  byteps_server_ = """,
        """  ps::PieceTransport::Receiver() = &RoundTable::Instance();

  // init server instance
  byteps_server_ = """,
        _WHY,
        _TEST,
    ),
)
