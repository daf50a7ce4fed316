"""The torch plugin waits without the GIL, on a condition variable, and with a time limit."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_GIL = "test_byteps_waiting.py"

EDITS = (
    Edit(
        "byteps/torch/handle_manager.h",
        """  bool PollHandle(int handle);
""",
        """  bool PollHandle(int handle);
  // Sleep until the handle is done or the time is over. True: done. A negative time means no limit.
  bool WaitHandle(int handle, double timeout_s);
""",
        "a wait that sleeps",
        _GIL,
    ),
    Edit(
        "byteps/torch/handle_manager.h",
        """  std::mutex mutex_;
""",
        """  std::mutex mutex_;
  std::condition_variable done_;
""",
        "a wait that sleeps",
        _GIL,
    ),
    Edit(
        "byteps/torch/handle_manager.h",
        """#include <atomic>
""",
        """#include <atomic>
#include <condition_variable>
""",
        "a wait that sleeps",
        _GIL,
    ),
    Edit(
        "byteps/torch/handle_manager.h",
        """  void MarkDone(int handle, const Status& status);
""",
        """  // `tensors` lives until the handle is released, so that the waiting thread destroys it: BytePS's
  // threads must not wait for the GIL, which that can take.
  void MarkDone(int handle, const Status& status, std::shared_ptr<void> tensors);
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/torch/handle_manager.h",
        """  std::unordered_map<int, std::shared_ptr<Status>> results_;
""",
        """  std::unordered_map<int, std::shared_ptr<Status>> results_;
  std::unordered_map<int, std::shared_ptr<void>> tensors_;
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/torch/handle_manager.cc",
        """std::shared_ptr<Status> HandleManager::ReleaseHandle(int handle) {
  std::lock_guard<std::mutex> guard(mutex_);
""",
        """std::shared_ptr<Status> HandleManager::ReleaseHandle(int handle) {
  std::shared_ptr<void> tensors;  // destroyed after the lock is given back
  std::lock_guard<std::mutex> guard(mutex_);
  auto kept = tensors_.find(handle);
  if (kept != tensors_.end()) {
    tensors.swap(kept->second);
    tensors_.erase(kept);
  }
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/torch/handle_manager.cc",
        """void HandleManager::MarkDone(int handle, const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
  results_[handle] = std::make_shared<Status>(status);
}
""",
        """void HandleManager::MarkDone(int handle, const Status& status, std::shared_ptr<void> tensors) {
  std::lock_guard<std::mutex> guard(mutex_);
  results_[handle] = std::make_shared<Status>(status);
  tensors_[handle] = std::move(tensors);
  done_.notify_all();
}

bool HandleManager::WaitHandle(int handle, double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto done = [this, handle] {
    auto it = results_.find(handle);
    if (it == results_.end()) {
      throw std::invalid_argument("Handle " + std::to_string(handle) +
                                  " was not created or has been cleared.");
    }
    return it->second != nullptr;
  };
  if (timeout_s < 0) {
    done_.wait(lock, done);
    return true;
  }
  return done_.wait_for(lock, std::chrono::duration<double>(timeout_s), done);
}
""",
        "a wait that sleeps",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """static HandleManager handle_manager;
""",
        """// never destroyed: at the end of the process there is no Python left to release tensors with
static HandleManager& handle_manager = *new HandleManager;
""",
        "a handle nobody waited for must not crash the exit",
        "test_byteps_cluster.py::test_exit_without_waiting",
    ),
    Edit(
        "byteps/torch/ops.cc",
        """        // Will execute in the `device` context.
        if (average) {
""",
        """        // Will execute in the `device` context.
        auto tensors = std::make_shared<std::pair<::torch::Tensor, ::torch::Tensor>>(
            std::move(tensor), std::move(output));
        auto& output = tensors->second;
        if (average) {
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """            output.floor_divide_(byteps_size());
            handle_manager.MarkDone(handle, status);
""",
        """            output.floor_divide_(byteps_size());
            handle_manager.MarkDone(handle, status, tensors);
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """          output.div_(byteps_size());
        }
        handle_manager.MarkDone(handle, status);
""",
        """          output.div_(byteps_size());
        }
        handle_manager.MarkDone(handle, status, std::move(tensors));
""",
        "BytePS's threads must not wait for the GIL",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """  while (!handle_manager.PollHandle(handle)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  auto status = handle_manager.ReleaseHandle(handle);
  ThrowIfError(*status);
}
""",
        """  handle_manager.WaitHandle(handle, -1.0);
  auto status = handle_manager.ReleaseHandle(handle);
  ThrowIfError(*status);
}

// True, and the handle is spent, when it is done within the time; otherwise false.
bool Wait(int handle, double timeout_s) {
  if (!handle_manager.WaitHandle(handle, timeout_s)) return false;
  auto status = handle_manager.ReleaseHandle(handle);
  ThrowIfError(*status);
  return true;
}
""",
        "a wait that sleeps",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """  m.def("byteps_torch_wait_and_clear", &WaitAndClear);
""",
        """  // BytePS's threads need the GIL to release a tensor, so whoever waits for them must not hold it.
  m.def("byteps_torch_wait_and_clear", &WaitAndClear, pybind11::call_guard<pybind11::gil_scoped_release>());
  m.def("byteps_torch_wait", &Wait, pybind11::call_guard<pybind11::gil_scoped_release>());
""",
        "waiting with the GIL deadlocks with recent torch",
        _GIL,
    ),
)
