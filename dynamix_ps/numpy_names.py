"""Names that MXNet 1.9 uses and NumPy dropped with 1.24. To be imported before mxnet; builds of BytePS carry a copy."""

import builtins

import numpy

for _name in ("bool", "int", "float", "complex", "object"):
    if _name not in vars(numpy):
        setattr(numpy, _name, getattr(builtins, _name))
