"""Scripts on BytePS itself: tensors in host memory go directly to the server and back, without stages or copies.

The sums of `Comm` do not come here (exchange.py), unless their buffers are on a GPU.
"""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_DIRECT = "the stages copy tensors in host memory to shared memory and back, four threads one after the other"
_SEGMENTS = "test_byteps_cluster.py::test_no_segment_and_no_socket_is_left"
_GIL = "test_byteps_waiting.py"

EDITS = (
    Edit(
        "byteps/common/core_loops.h",
        """void PullLoop();
""",
        """void PullLoop();

// Send a partition of a host tensor from its memory, and have the sum written into the output's memory.
void PushPullDirectly(std::shared_ptr<TensorTableEntry> task);
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/core_loops.h",
        """#define BYTEPS_CORE_LOOPS_H
""",
        """#define BYTEPS_CORE_LOOPS_H

#include <memory>
#include "common.h"
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/core_loops.cc",
        """bool RunDecompressLoopOnce() {
""",
        """void PushPullDirectly(std::shared_ptr<TensorTableEntry> task) {
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

bool RunDecompressLoopOnce() {
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """Status EnqueueTensor(BPSContext &context, std::shared_ptr<Tensor> input,
""",
        """// Whether tensors in host memory need no stage: nobody to reduce with on this host, no device to copy
// from, no credits to wait for, no trace of the stages wanted.
static bool HostTensorsGoDirectly() {
  static const bool staged = getenv("BYTEPS_SCHEDULING_CREDIT") ||
                             (getenv("BYTEPS_TRACE_ON") && atoi(getenv("BYTEPS_TRACE_ON")));
  return !staged && BytePSGlobal::IsDistributed() && BytePSGlobal::GetLocalSize() == 1;
}

Status EnqueueTensor(BPSContext &context, std::shared_ptr<Tensor> input,
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """  if (device == CPU_DEVICE_ID) {
    cudaError_t err = cudaHostRegister""",
        """  // (a caller that asks for a push or a pull alone goes through the stages)
  auto has = [&](QueueType type) {
    return std::find(queue_list->begin(), queue_list->end(), type) != queue_list->end();
  };
  bool direct = device == CPU_DEVICE_ID && context.compressor_list.empty() && HostTensorsGoDirectly() &&
                has(PUSH) && has(PULL);

  if (device == CPU_DEVICE_ID && !direct) {
    cudaError_t err = cudaHostRegister""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """  e->queue_list = *queue_list;
""",
        """  if (direct) {
    e->queue_list = {PULL};  // what is left when the answer arrives
  } else {
    e->queue_list = *queue_list;
  }
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """    BytePSGlobal::GetScheduledQueue(e->queue_list[0])->addTask(task);
    accumulated += task->len;
""",
        """    accumulated += task->len;
    if (direct) {
      PushPullDirectly(task);
    } else {
      BytePSGlobal::GetScheduledQueue(e->queue_list[0])->addTask(task);
    }
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """  size_t aligned_size = Align(size, dtype);
  if (BytePSGlobal::IsCrossPcieSwitch()) {
""",
        """  size_t aligned_size = Align(size, dtype);
  // what the first push carries where no shared memory is needed
  std::vector<char> zeros;
#ifdef DYNAMIX_CUDA_STAND_IN_H
  bool direct = cpubuff && HostTensorsGoDirectly() &&
                (context.kwargs.empty() || size < BytePSGlobal::GetMinCompressBound());
#else
  bool direct = false;  // the same name may come with a tensor on the GPU next time
#endif
  if (direct) {
    zeros.resize(aligned_size);
    context.cpubuff = zeros.data();
  } else if (BytePSGlobal::IsCrossPcieSwitch()) {
""",
        "no shared-memory segment where no stage needs one",
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """  BPS_CHECK_EQ(accumulated, size);
  BPS_CHECK_EQ(i, key_list.size());
""",
        """  if (direct) context.cpubuff = nullptr;
  BPS_CHECK_EQ(accumulated, size);
  BPS_CHECK_EQ(i, key_list.size());
""",
        "no shared-memory segment where no stage needs one",
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/core_loops.cc",
        """      task->callback(Status::OK());
""",
        """      // Let go of the tensors before their owner hears that they are free: to destroy one takes the GIL.
      auto callback = std::move(task->callback);
      task->tensor.reset();
      task->output.reset();
      callback(Status::OK());
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/common/ready_table.cc",
        """  _ready_table[key] = cnt;
}
""",
        """  return _ready_table[key] = cnt;
}
""",
        "a function that returns nothing where it should is undefined behaviour, with -Ofast a crash",
        "gradient compression",
    ),
    Edit(
        "byteps/common/cpu_reducer.cc",
        """    _num_threads = 4;
""",
        """    // each core that joins in must be woken for every sum
    _num_threads = std::thread::hardware_concurrency() >= 16 ? 4 : 1;
""",
        "four threads per sum are too many for small machines",
        "speed of scripts on byteps.torch where a server has few cores",
    ),
    Edit(
        "byteps/common/cpu_reducer.cc",
        """#include <cmath>
""",
        """#include <cmath>
#include <thread>
""",
        "four threads per sum are too many for small machines",
        "speed of scripts on byteps.torch where a server has few cores",
    ),
)
