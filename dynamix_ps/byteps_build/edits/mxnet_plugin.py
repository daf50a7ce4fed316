"""The MXNet plugin, for scripts on byteps.mxnet: tensors live long enough, functions return what Python expects."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_TEST = "test_comm_mxnet.py::test_plain_script"
_RETURNS = "Python takes what it returns for an error code, and it returned nothing"

EDITS = (
    Edit(
        "byteps/mxnet/ops.cc",
        """  auto input = push_pull_param->input.get();
""",
        """  // the answer may come, and the parameters go, before this function is through with the tensor
  auto held = push_pull_param->input;
  auto input = held.get();
""",
        "a tensor was read after its memory was freed",
        _TEST,
    ),
    Edit(
        "byteps/mxnet/ops.h",
        """extern "C" void byteps_mxnet_declare_tensor(""",
        """extern "C" int byteps_mxnet_declare_tensor(""",
        _RETURNS,
        _TEST,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """extern "C" void byteps_mxnet_declare_tensor(""",
        """extern "C" int byteps_mxnet_declare_tensor(""",
        _RETURNS,
        _TEST,
    ),
    Edit(
        "byteps/mxnet/ops.cc",
        """  return;
}
""",
        """  return 0;
}
""",
        _RETURNS,
        _TEST,
    ),
)
