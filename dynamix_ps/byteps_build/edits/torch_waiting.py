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
        "byteps/torch/handle_manager.cc",
        """  results_[handle] = std::make_shared<Status>(status);
}
""",
        """  results_[handle] = std::make_shared<Status>(status);
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
