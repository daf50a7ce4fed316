"""The torch plugin waits without the GIL, on a condition variable, and with a time limit."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_GIL = "test_byteps_waiting.py"

EDITS = (
    added("byteps/torch/open_handles.h", "a wait that sleeps", _GIL),
    Edit(
        "setup.py",
        """                                                       'byteps/torch/adapter.cc',
                                                       'byteps/torch/handle_manager.cc'],
""",
        """                                                       'byteps/torch/adapter.cc'],
""",
        "open_handles.h is there instead",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """#include "handle_manager.h"
""",
        """#include "open_handles.h"
""",
        "a wait that sleeps",
        _GIL,
    ),
    Edit(
        "byteps/torch/ops.cc",
        """static HandleManager handle_manager;
""",
        """// never destroyed: at the end of the process there is no Python left to release tensors with
static OpenHandles& handle_manager = *new OpenHandles;
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
