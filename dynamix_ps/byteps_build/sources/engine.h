// Which thread of the server makes a sum.
#ifndef BYTEPS_SERVER_ENGINE_H_
#define BYTEPS_SERVER_ENGINE_H_

#include <vector>

#include "server.h"  // before queue.h, which uses its types

#include "queue.h"

namespace byteps {
namespace server {

// server.cc
extern std::vector<PriorityQueue*> engine_queues_;
void HandleEngineMessage(int i, BytePSEngineMessage& msg);

inline void BytePSServerEngineThread(int i) {
  auto& q = engine_queues_[i];
  while (true) {
    BytePSEngineMessage msg;
    q->WaitAndPop(&msg);
    if (msg.ops == TERMINATE) break;
    HandleEngineMessage(i, msg);
  }
}

// Small tensors are summed at once: to wake an engine thread takes longer than the sum. All messages of a
// key go the same way, so their order is kept.
inline void Dispatch(int i, BytePSEngineMessage& msg) {
  static const size_t inline_bytes = GetEnv("BYTEPS_SERVER_INLINE_BYTES", 65536);
  if (msg.len <= inline_bytes) {
    HandleEngineMessage(i, msg);
  } else {
    engine_queues_[i]->Push(msg);
  }
}

}  // namespace server
}  // namespace byteps

#endif  // BYTEPS_SERVER_ENGINE_H_
