"""What a torch script imports: `import dynamix_ps.torch as dynamix`."""

from worker_hooks.torch.join import attach, before_all, shards
from worker_hooks.torch.run import Run

__all__ = ["Run", "attach", "before_all", "shards"]
