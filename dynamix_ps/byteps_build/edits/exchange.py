"""The sums of `Comm`: buffers in pieces, one message each way; shared memory within a host."""

from __future__ import annotations

from importlib import resources

from dynamix_ps.byteps_build.edits.base import Edit

_SOURCES = resources.files("dynamix_ps.byteps_build") / "sources"
_WHY = "sums of Comm: a buffer in pieces, one message each way, shared memory within a host"
_TEST = "test_race.py"
_ELASTIC = "test_workers_lost.py"

_ADDED = (
    ("pieces.h", "3rdparty/ps-lite/include/ps"),
    ("sums.h", "byteps/common"),
    ("segment.h", "byteps/common"),
    ("host_push.h", "byteps/common"),
    ("host_sum.h", "byteps/common"),
    ("exchange.h", "byteps/common"),
    ("elastic_exchange.h", "byteps/common"),
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
        """#include "ps/losses.h"
#include "queue.h"
#include "round_table.h"
""",
        _WHY,
        _TEST,
    ),
    Edit(
        "byteps/server/server.cc",
        """extern "C" void byteps_server() {
""",
        """RoundTable& Rounds() {
  static RoundTable* rounds = new RoundTable();
  return *rounds;
}

// What is below, any thread may call, from before the server runs. See dynamix_ps/comm/elastic.py.
extern "C" void byteps_server_fence(uint64_t generation, uint64_t round) { Rounds().Fence(generation, round); }

// The next role whose connection has ended: its kind, and in `rank` which one; -1: none within `timeout_s`.
extern "C" int byteps_server_next_loss(double timeout_s, int* rank) {
  return ps::Losses::Instance().Next(timeout_s, rank);
}

// Ranks of workers that others wait for and that do not answer, see RoundTable::Silent: up to `room`; how many.
extern "C" int byteps_server_silent(double quiet_s, int32_t* ranks, int room) {
  std::vector<int> silent = Rounds().Silent(quiet_s);
  int count = std::min<int>(room, silent.size());
  std::copy_n(silent.begin(), count, ranks);
  return count;
}

extern "C" void byteps_server() {
""",
        "workers may be lost while the others go on",
        _ELASTIC,
    ),
    Edit(
        "byteps/server/server.cc",
        """  // init server instance
  byteps_server_ = """,
        """  ps::PieceTransport::Receiver() = &Rounds();

  // init server instance
  byteps_server_ = """,
        _WHY,
        _TEST,
    ),
)
