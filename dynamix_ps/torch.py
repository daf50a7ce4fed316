"""What a torch script imports: `import dynamix_ps.torch as dynamix`."""

from worker_hooks.torch.join import attach, shards
from worker_hooks.torch.run import Run

__all__ = ["Run", "attach", "shards"]
