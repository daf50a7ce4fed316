"""The hook for MXNet. Scripts import it as `dynamix_ps.mxnet`. In reading order:

  run              attach() and Run
  gradients        buckets that backward writes into
  parameters       what a training changes, watched from batch to batch
  state            the complete state, for the other workers and for checkpoints

Data
  batches          samples to NDArrays
  loader           the script's Gluon DataLoader as the source of batches

Memory
  micro_batches    a batch of more than at_once samples is computed in parts, exactly
  memory           which parts the backward pass repeats
"""

from worker_hooks.mxnet.run import Run, attach, before_all

__all__ = ["Run", "attach", "before_all"]
