"""What present compilers, Python and torch need to build BytePS. Both variants have these edits."""

from __future__ import annotations

from dynamix_ps.byteps_build.cpu_level import LEVEL
from dynamix_ps.byteps_build.edits.base import Edit

BUILD = "the build itself"

FOR_OTHER_HOSTS = Edit(
    "setup.py",
    "'-march=native'",
    f"'-march={LEVEL}'",
    "a wheel for other hosts must not have instructions that only this CPU has",
    "test_byteps_build.py",
)

EDITS = (
    Edit(
        "setup.py",
        """    return ret_code==0
""",
        """    return False
""",
        "RDMA headers that happen to be installed would make RDMA libraries a requirement",
        BUILD,
    ),
    Edit(
        "setup.py",
        "include_dirs=include_dirs + include_paths(cuda=True),",
        "include_dirs=include_dirs + include_paths(device_type='cuda'),",
        "torch renamed the argument",
        BUILD,
    ),
    Edit(
        "setup.py",
        """    pytorch_compile_flags = ["-std=c++14" if flag == "-std=c++11" 
                             else flag for flag in options['COMPILE_FLAGS']]
""",
        """    pytorch_compile_flags = ["-std=c++20" if flag == "-std=c++11"
                             else flag for flag in options['COMPILE_FLAGS']]
    pytorch_compile_flags += ["-include", "torch_version.h"]
""",
        "torch's headers need C++20, and its version as a number (headers/torch/torch_version.h)",
        BUILD,
    ),
    Edit(
        "setup.py",
        """    updated_macros = set_macro(
       updated_macros, 'TORCH_VERSION', str(torch_version))
""",
        "",
        "torch defines TORCH_VERSION itself now; torch_version.h gives it the form the sources expect",
        BUILD,
    ),
    Edit(
        "setup.py",
        """'-fPIC', '-Ofast', '-Wall',""",
        """'-fPIC', '-Ofast', '-fno-strict-aliasing', '-Wall',""",
        "the conversion of half-precision numbers reads integers as floats, which gcc is free to break",
        "test_byteps_cluster.py::test_sums",
    ),
    Edit(
        "setup.py",
        """    cpp_flags.append('-DDMLC_USE_RDMA')
""",
        "",
        "the MXNet plugin would speak RDMA's wire format",
        BUILD,
    ),
    Edit(
        "setup.py",
        """        try:
            build_server(self, options)
        except:
""",
        """        try:
            if not int(os.environ.get('DYNAMIX_WITHOUT_SERVER', 0)):
                build_server(self, options)
        except:
""",
        "the second of two builds that go into one wheel needs no server of its own",
        BUILD,
    ),
    Edit(
        "byteps/torch/ops.cc",
        "isIntegralType(output.scalar_type())",
        "isIntegralType(output.scalar_type(), /*includeBool=*/false)",
        "torch 2.14 has no default for the second argument",
        BUILD,
    ),
    Edit(
        "byteps/mxnet/__init__.py",
        """import mxnet as mx
import mxnet.ndarray as nd
""",
        """import byteps.mxnet.numpy_names
import mxnet as mx
import mxnet.ndarray as nd
""",
        "MXNet uses names of NumPy's that are gone since NumPy 1.24",
        "import of byteps.mxnet",
    ),
    Edit(
        "MANIFEST.in",
        """include pre_setup.py""",
        """include byteps/dynamix_build.json
include pre_setup.py""",
        "the wheel says what it was made of",
        "test_byteps_build.py",
    ),
    Edit(
        "byteps/torch/ops.py",
        """from distutils.version import LooseVersion

""",
        "",
        "Python 3.12 has no distutils, and the name is not used",
        "import of byteps.torch on Python 3.12",
    ),
)
