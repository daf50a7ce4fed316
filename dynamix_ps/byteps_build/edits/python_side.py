"""BytePS's Python files: an unmodified script then runs without a GPU and on a recent Python."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_PLAIN = "test_byteps_cluster.py::test_unmodified_script"

_TORCH = "byteps/torch/__init__.py"
_COMMON = "byteps/common/__init__.py"

EDITS = (
    Edit(
        _TORCH,
        """        if isinstance(x, collections.Iterable):
""",
        """        if isinstance(x, collections.abc.Iterable):
""",
        "collections.Iterable is gone since Python 3.10",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """import torch
import collections
""",
        """import torch
import collections
import collections.abc
""",
        "collections.Iterable is gone since Python 3.10",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """            if option_key == 'params':
                continue
""",
        """            # flags like foreach=None and names have no value that could be summed
            if option_key == 'params' or option_value is None or isinstance(option_value, str):
                continue
            if torch.is_tensor(option_value):
                params.append(('%s.%d' % (option_key, index), option_value))
                continue
""",
        "optimizers of recent torch have options that are no numbers, and learning rates that are tensors",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """            option_tensor = torch.Tensor([option_value]).cuda()
""",
        """            option_tensor = torch.tensor([option_value], dtype=torch.float64)
""",
        "works without a GPU, and does not round the learning rate to 32 bits",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """                key = '%s.%d' % (str(name), occurrences[name])

                if not torch.is_tensor(p):
""",
        """                key = '%s.%d' % (str(name), occurrences[name])

                if p is None:
                    continue
                if not torch.is_tensor(p):
""",
        "SGD without momentum keeps None as its buffer",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """                    p = torch.Tensor([p]).cuda()
""",
        """                    p = torch.tensor([p], dtype=torch.float64)
""",
        "works without a GPU, and does not round to 32 bits",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """        for group in optimizer.param_groups:
            for p in group['params']:
                p.grad = p.data.new(p.size()).zero_()
""",
        """        before = {}
        for group in optimizer.param_groups:
            for p in group['params']:
                p.grad = p.data.new(p.size()).zero_()
                before[p] = p.data.clone()
""",
        "weight decay changed the parameters of those ranks whose optimizer was new",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """            optimizer.step()
        state_dict = optimizer.state_dict()
""",
        """            optimizer.step()
        for p, data in before.items():
            p.data.copy_(data)
        state_dict = optimizer.state_dict()
""",
        "weight decay changed the parameters of those ranks whose optimizer was new",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """    # If the state_dict is still empty after initialization, then
    # the optimizer is stateless, and there is nothing to broadcast.
    # Furthermore, attempting to access the state dict would result in
    # an error.
    if len(state_dict['state']) == 0:
        return

""",
        "",
        "the learning rate of an optimizer without state was not broadcast",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """            param_state = state_dict['state'][pid]
""",
        """            param_state = state_dict['state'].get(pid, {})
""",
        "the learning rate of an optimizer without state was not broadcast",
        _PLAIN,
    ),
    Edit(
        _TORCH,
        """            p.fill_(0)
""",
        """            p.data.fill_(0)
""",
        "named_parameters(), which it is documented to take, require gradients",
        _PLAIN,
    ),
    Edit(
        _COMMON,
        """        pushpull_speed = self.C_LIB_CTYPES.byteps_get_pushpull_speed
""",
        """        # it makes a Python object, so it needs the GIL, which a function of a CDLL does not have
        pushpull_speed = ctypes.PyDLL(self.C_LIB_CTYPES._name).byteps_get_pushpull_speed
""",
        "it crashed",
        "test_byteps_cluster.py::test_speed_can_be_asked",
    ),
    Edit(
        _COMMON,
        """        atexit.register(self.shutdown)
""",
        """        atexit.register(self._shutdown_at_exit)
""",
        "a worker that failed waited at its exit for all others, for ever",
        "test_byteps_cluster.py::test_failed_worker_ends",
    ),
    Edit(
        _COMMON,
        """    def shutdown(self):
""",
        """    def _shutdown_at_exit(self):
        # Shutting down means to wait until all others do. After an error they will not.
        if getattr(sys, 'last_value', None) is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        self.shutdown()

    def shutdown(self):
""",
        "a worker that failed waited at its exit for all others, for ever",
        "test_byteps_cluster.py::test_failed_worker_ends",
    ),
    Edit(
        _COMMON,
        """import os
import sysconfig
""",
        """import os
import sys
import sysconfig
""",
        "a worker that failed waited at its exit for all others, for ever",
        "test_byteps_cluster.py::test_failed_worker_ends",
    ),
)
