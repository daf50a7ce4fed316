"""What a torch script imports: `import dynamix_ps.torch as dynamix`."""

from worker_hooks.process import failure
from worker_hooks.torch import Run, attach, before_all, shards

failure.install()

__all__ = ["Run", "attach", "before_all", "shards"]
