"""The hook for MXNet. Scripts import it as `dynamix_ps.mxnet`. In reading order:

  join             attach() and before_all(): how a script joins the other workers
  adapter          what a training does in its own way in MXNet
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

from worker_hooks.mxnet.join import attach, before_all
from worker_hooks.run import Run

__all__ = ["Run", "attach", "before_all"]
