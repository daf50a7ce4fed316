"""Scripts on BytePS itself: tensors in host memory go directly to the server and back, without stages or copies.

The sums of `Comm` do not come here (exchange.py), unless their buffers are on a GPU.
"""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_DIRECT = "the stages copy tensors in host memory to shared memory and back, four threads one after the other"
_SEGMENTS = "test_byteps_cluster.py::test_no_segment_and_no_socket_is_left"
_GIL = "test_byteps_waiting.py"

EDITS = (
    added("byteps/common/direct.h", _DIRECT, _SEGMENTS),
    Edit(
        "byteps/common/operations.cc",
        """#include "core_loops.h"
""",
        """#include "core_loops.h"
#include "direct.h"
""",
        _DIRECT,
        _SEGMENTS,
    ),
    Edit(
        "byteps/common/operations.cc",
        """  if (device == CPU_DEVICE_ID) {
    cudaError_t err = cudaHostRegister""",
        """  const bool direct = GoesDirectly(context, device, *queue_list);
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
  const bool direct = NeedsNoSharedMemory(context, size, cpubuff);
  std::vector<char> zeros;  // what the first push carries then
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
