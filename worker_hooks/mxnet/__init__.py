"""The hook for MXNet. Scripts import it as `dynamix_ps.mxnet`."""

from worker_hooks.mxnet.run import Run, attach

__all__ = ["Run", "attach"]
