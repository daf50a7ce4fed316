"""The server: no wrong sums, no races on its tables, and small sums without a second thread."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_RACE = "test_race.py"
_SPEED = "benchmarks/parts/comm.py"

_H = "byteps/server/server.h"
_CC = "byteps/server/server.cc"

PARITY = (
    Edit(
        _H,
        """struct BytePSArray {
  char* tensor;
""",
        """struct BytePSArray {
  char* tensor;
  char* other;  // the buffer of the round before
""",
        "two buffers per key, used in turn",
        _RACE,
    ),
    Edit(
        _CC,
        """      PageAlignedMalloc((void**)&stored->tensor, aligned_size);
""",
        """      PageAlignedMalloc((void**)&stored->tensor, aligned_size);
      if (sync_mode_ && GetEnv("BYTEPS_SERVER_PARITY", 1)) {
        PageAlignedMalloc((void**)&stored->other, aligned_size);
      }
      if (!sync_mode_) {  // no round ever completes there: pulls are answered from the store
        updates.merged.tensor = stored->tensor;
        updates.merged.len = len;
      }
""",
        "two buffers per key, used in turn",
        _RACE,
    ),
    Edit(
        _CC,
        """          updates.merged.tmp_sarray = req_data;
""",
        """          updates.merged.tmp_sarray = req_data;
          // Answers to pulls are sent from the store without a copy, and may still be on their way when
          // the first push of the next round comes: that one must not overwrite them. So a round uses the
          // buffer that the round before did not. The buffer of round t is used again in round t+2. A
          // worker pushes round t+2 only when its pull of t+1 is complete; for that every worker has
          // pushed t+1, which each of them does only when its pull of t is complete. So by then nobody
          // reads the buffer of round t any more.
          if (stored->other) std::swap(stored->tensor, stored->other);
""",
        "a fast worker's next push corrupted what a slow worker was receiving",
        _RACE,
    ),
    Edit(
        _CC,
        """      free(it.second.tensor);
""",
        """      free(it.second.tensor);
      free(it.second.other);
""",
        "two buffers per key, used in turn",
        _RACE,
    ),
)

TABLES = (
    added("byteps/server/tables.h", "new keys while sums are running corrupted the tables", _RACE),
    Edit(
        _CC,
        """#include "../common/compressor/utils.h"
""",
        """#include "../common/compressor/utils.h"
#include "tables.h"
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """  auto& updates = update_buf_[key];
  CHECK(updates.merged.tensor) << "init " << key << " first";
""",
        """  auto& updates = GetUpdate(key);
  CHECK(updates.merged.tensor) << "init " << key << " first";
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """    auto iter = compressor_map_.find(msg.key);
    if (iter != compressor_map_.end()) {
""",
        """    auto compressor = GetCompressor(msg.key);
    if (compressor) {
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """        auto compressed = iter->second->Compress(grad);
        // 1. compress
        auto& updates = update_buf_[msg.key];
""",
        """        auto compressed = compressor->Compress(grad);
        // 1. compress
        auto& updates = GetUpdate(msg.key);
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """        auto decompressed = iter->second->Decompress(compressed);
""",
        """        auto decompressed = compressor->Decompress(compressed);
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """        // 2. no compress
        auto& updates = update_buf_[msg.key];
""",
        """        // 2. no compress
        auto& updates = GetUpdate(msg.key);
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """    if (compressor_map_.find(key) == compressor_map_.end()) {
""",
        """    if (!GetCompressor(key)) {
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """      compressor_map_[key] = std::move(compressor_ptr);
""",
        """      SetCompressor(key, std::move(compressor_ptr));
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """    // buffer the request meta
    auto& updates = update_buf_[key];
    updates.request.push_back(req_meta);
    // should send response after collecting all init push
    if (updates.request.size() < (size_t)ps::NumWorkers()) return;

    for""",
        """    // buffer the request meta
    auto& updates = GetUpdate(key);
    updates.request.push_back(req_meta);
    // should send response after collecting all init push
    if (updates.request.size() < (size_t)ps::NumWorkers()) return;

    for""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """      if (sync_mode_ && (update_buf_.find(key) == update_buf_.end())) {
        update_buf_[key].merged.len = len;
        update_buf_[key].merged.dtype = type.dtype;
      }
      // buffer the request meta
      auto& updates = update_buf_[key];
""",
        """      // buffer the request meta
      auto& updates = GetUpdate(key);
      updates.merged.len = len;
      updates.merged.dtype = type.dtype;
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
    Edit(
        _CC,
        """    } else {
      auto& updates = update_buf_[key];
      auto tid = GetThreadID(key, len);
""",
        """    } else {
      auto& updates = GetUpdate(key);
      auto tid = GetThreadID(key, len);
""",
        "new keys while sums are running corrupted the tables",
        _RACE,
    ),
)

ENGINE = (
    added("byteps/server/engine.h", "small sums are done by the receiving thread", _SPEED),
    Edit(
        _CC,
        """#include "queue.h"
""",
        """#include "engine.h"
#include "queue.h"
""",
        "small sums are done by the receiving thread",
        _SPEED,
    ),
    Edit(
        _CC,
        """void BytePSServerEngineThread(int i) {
  auto& q = engine_queues_[i];
  while (true) {
    BytePSEngineMessage msg;
    q->WaitAndPop(&msg);
    if (msg.ops == TERMINATE) break;
    // do some check
""",
        """void HandleEngineMessage(int i, BytePSEngineMessage& msg) {
  {
    // do some check
""",
        "small sums are done by the receiving thread",
        _SPEED,
    ),
    Edit(
        _CC,
        """                                     COPY_FIRST,     req_data, req_meta};
          engine_queues_[tid]->Push(msg);
""",
        """                                     COPY_FIRST,     req_data, req_meta};
          Dispatch(tid, msg);
""",
        "small sums are done by the receiving thread",
        _SPEED,
    ),
    Edit(
        _CC,
        """                                     SUM_RECV,       req_data, req_meta};
          engine_queues_[tid]->Push(msg);
""",
        """                                     SUM_RECV,       req_data, req_meta};
          Dispatch(tid, msg);
""",
        "small sums are done by the receiving thread",
        _SPEED,
    ),
    Edit(
        _CC,
        """              stored->tensor, stored->len, ALL_RECV};
          engine_queues_[tid]->Push(msg);
""",
        """              stored->tensor, stored->len, ALL_RECV};
          Dispatch(tid, msg);
""",
        "small sums are done by the receiving thread",
        _SPEED,
    ),
)

EDITS = PARITY + TABLES + ENGINE
