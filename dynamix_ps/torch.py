"""What a torch script imports: `import dynamix_ps.torch as dynamix`."""

from worker_hooks.torch.run import Run, attach, shards

__all__ = ["Run", "attach", "shards"]
