// Tensors in host memory skip the stages: a partition is sent from its tensor's memory, and the sum is written to the
// output's memory.
#ifndef BYTEPS_COMMON_DIRECT_H_
#define BYTEPS_COMMON_DIRECT_H_

#include <cuda_runtime.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "global.h"

namespace byteps {
namespace common {

void FinishOrProceed(std::shared_ptr<TensorTableEntry> task);  // core_loops.cc

// Whether tensors in host memory need no stage: nobody to reduce with on this host, no device to copy
// from, no credits to wait for, no trace of the stages wanted.
inline bool HostTensorsGoDirectly() {
  static const bool staged = getenv("BYTEPS_SCHEDULING_CREDIT") ||
                             (getenv("BYTEPS_TRACE_ON") && atoi(getenv("BYTEPS_TRACE_ON")));
  return !staged && BytePSGlobal::IsDistributed() && BytePSGlobal::GetLocalSize() == 1;
}

// Whether this tensor does. A caller that asks for a push or a pull alone goes through the stages.
inline bool GoesDirectly(const BPSContext &context, int device, const std::vector<QueueType> &stages) {
  auto has = [&](QueueType stage) { return std::find(stages.begin(), stages.end(), stage) != stages.end(); };
  return device == CPU_DEVICE_ID && context.compressor_list.empty() && HostTensorsGoDirectly() && has(PUSH) &&
         has(PULL);
}

// Whether a tensor at `place` in host memory (null: it is on a GPU) never needs shared memory.
inline bool NeedsNoSharedMemory(const BPSContext &context, size_t bytes, const void *place) {
#ifdef DYNAMIX_CUDA_STAND_IN_H
  return place && HostTensorsGoDirectly() &&
         (context.kwargs.empty() || bytes < BytePSGlobal::GetMinCompressBound());
#else
  return false;  // the same name may come with a tensor on the GPU next time
#endif
}

// Send a partition of a host tensor from its memory, and have the sum written into the output's memory.
inline void PushPullDirectly(std::shared_ptr<TensorTableEntry> task) {
  auto ps = BytePSGlobal::GetPS();
  auto input = static_cast<char *>(const_cast<void *>(task->tensor->data())) + task->offset;
  auto output = static_cast<char *>(const_cast<void *>(task->output->data())) + task->offset;
  int cmd = GetCommandType(RequestType::kDefaultPushPull, task->tensor->dtype());
  auto &pskv = BytePSGlobal::EncodeDefaultKey(task->key, task->len);

  // The pull follows at once: one connection keeps the order, and the server answers a pull when all
  // pushes of its round are there. The answer also says that the push has arrived, so that output may
  // be the same memory as input.
  ps::SArray<char> pushed(input, task->len, false);
  ps->ZPush(pskv.keys, pushed, pskv.lens, cmd);
  auto pulled = new ps::SArray<char>(output, task->len, false);
  ps->ZPull(pskv.keys, pulled, &pskv.lens, cmd, [pulled, task]() {
    delete pulled;
    FinishOrProceed(task);
  });
}

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_COMMON_DIRECT_H_
