"""The MXNet plugin: a wait with a time limit, and functions that return what Python expects."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_WAIT = "test_comm_mxnet.py"

EDITS = (
    Edit(
        "byteps/mxnet/ops.h",
        """extern "C" void byteps_mxnet_declare_tensor(""",
        """// A sum over all workers, in place. `handle` is set to a number for byteps_mxnet_wait.
extern "C" int byteps_mxnet_sum_async(NDArray* tensor, char* name, int* handle);

// Sleep until the sum is complete or the time is over. 1: done, 0: not yet, -1: failed, -2: no such handle.
// After anything but 0 the handle is spent.
extern "C" int byteps_mxnet_wait(int handle, double timeout_s);

extern "C" int byteps_mxnet_declare_tensor(""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """  int version;
  int priority;

  PushPullParam(BPSContext* context, std::shared_ptr<NDArray> input, int version, int priority)
      : context(context), input(input), version(version), priority(priority) {}
};
""",
        """  int version;
  int priority;
  int handle;  // 0: nobody waits

  PushPullParam(BPSContext* context, std::shared_ptr<NDArray> input, int version, int priority, int handle)
      : context(context), input(input), version(version), priority(priority), handle(handle) {}
};

// Sums somebody waits for, by number.
class Handles {
 public:
  int Begin() {
    std::lock_guard<std::mutex> guard(mutex_);
    states_[++last_] = 0;
    return last_;
  }

  void End(int handle, bool ok) {
    std::lock_guard<std::mutex> guard(mutex_);
    states_[handle] = ok ? 1 : -1;
    ended_.notify_all();
  }

  int Wait(int handle, double timeout_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (states_.find(handle) == states_.end()) return -2;
    ended_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return states_[handle] != 0; });
    int state = states_[handle];
    if (state != 0) states_.erase(handle);
    return state;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::unordered_map<int, int> states_;
  int last_ = 0;
};

// never destroyed: BytePS's threads may use it while the process ends
Handles& handles = *new Handles;
""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """#include <atomic>
""",
        """#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """  auto input = push_pull_param->input.get();
""",
        """  // the answer may come, and the parameters go, before this function is through with the tensor
  auto held = push_pull_param->input;
  auto input = held.get();
""",
        "a tensor was read after its memory was freed",
        "test_invariants.py::test_all_workers_have_the_same_bits_after_the_broadcast_and_after_200_steps",
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """      [on_complete](const Status& status) {
        InvokeCompleteCallback(on_complete, status);
      },
""",
        """      [on_complete, handle](const Status& status) {
        InvokeCompleteCallback(on_complete, status);
        if (handle) handles.End(handle, status.ok());
      },
""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """  int version = push_pull_param->version;
""",
        """  int version = push_pull_param->version;
  int handle = push_pull_param->handle;
""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """extern "C" int byteps_mxnet_push_pull_async(NDArray* tensor, char* name,
                                            int version, int priority,
                                            bool is_average) {
  MX_API_BEGIN();
""",
        """static int PushPullAsync(NDArray* tensor, char* name, int version, int priority, bool is_average,
                         int handle) {
  MX_API_BEGIN();
""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """new PushPullParam(&context, tensor_copy, version, priority);
""",
        """new PushPullParam(&context, tensor_copy, version, priority, handle);
""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """extern "C" void byteps_mxnet_declare_tensor(""",
        """extern "C" int byteps_mxnet_push_pull_async(NDArray* tensor, char* name, int version, int priority,
                                            bool is_average) {
  return PushPullAsync(tensor, name, version, priority, is_average, 0);
}

extern "C" int byteps_mxnet_sum_async(NDArray* tensor, char* name, int* handle) {
  *handle = handles.Begin();
  return PushPullAsync(tensor, name, 0, 0, false, *handle);
}

extern "C" int byteps_mxnet_wait(int handle, double timeout_s) { return handles.Wait(handle, timeout_s); }

extern "C" int byteps_mxnet_declare_tensor(""",
        "a wait with a time limit",
        _WAIT,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """  return;
}
""",
        """  return 0;
}
""",
        "Python takes what it returns for an error code, and it returned nothing",
        _WAIT,
    ),
)
