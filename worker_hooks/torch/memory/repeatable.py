"""What a forward pass changes besides its outputs: random generators and the buffers of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class ForwardState:
    """The state of torch's random generators and of a model's buffers, as it is now."""

    def __init__(self, model: torch.nn.Module, buffers: bool = True) -> None:
        self._cpu = torch.get_rng_state()
        on_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._cuda = torch.cuda.get_rng_state_all() if on_cuda else []
        self._buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in (model.modules() if buffers else ())
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def restore(self) -> None:
        """Make everything what it was."""
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        for module, name, buffer, value in self._buffers:
            buffer.data.copy_(value)  # not seen by autograd: a graph of before may need the buffer
            module._buffers[name] = buffer

    @contextmanager
    def restored(self) -> Iterator[None]:
        """What happens in here leaves no trace."""
        try:
            yield
        finally:
            self.restore()
