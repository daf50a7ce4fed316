"""What an MXNet script imports, before `mxnet` itself: `import dynamix_ps.mxnet as dynamix`."""

from worker_hooks.mxnet import Run, attach, before_all
from worker_hooks.process import failure

failure.install()

__all__ = ["Run", "attach", "before_all"]
