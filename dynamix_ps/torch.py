"""What a torch script imports: `import dynamix_ps.torch as dynamix`."""

from worker_hooks.torch.run import Run, attach

__all__ = ["Run", "attach"]
