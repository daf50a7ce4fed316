"""The hook for torch. Scripts import it as `dynamix_ps.torch`."""

from worker_hooks.torch.run import Run, attach, shards

__all__ = ["Run", "attach", "shards"]
