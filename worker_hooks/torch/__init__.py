"""The hook for torch. Scripts import it as `dynamix_ps.torch`. In reading order:

  join             attach(), before_all() and shards(): how a script joins the other workers
  adapter          what a training does in its own way in torch
  script_calls     what a script calls in torch by itself, and what it means for its training
  step_hooks       around every step of an optimizer
  watched_calls    what the script calls in torch itself
  loss_graph       whether a loss is a mean over samples, as far as its graph shows
  batch_values     values of the whole batch in a loss, with which it is none
  graph_nodes      what nodes of a graph are, and what they have kept
  summed_gradients  what the last sum has left, where losses are sums
  gathered_rows    run.gather: the rows of all workers, through which a loss has its gradient
  batch_of_loss    which batch a loss is of, by what its graph has kept
  gradients        the exchange of gradients: buckets that fill while backward runs
  bucket           one bucket: where gradients are put, summed, and handed to the parameters
  places           the places of gradients in a bucket, and what the script keeps of them
  gradient_hooks   hooks of the script on gradients, which wait for the sum
  parameters       what a training changes, watched from batch to batch
  averages         moving averages of the weights
  schedulers       the script's schedulers, which may be far from their end when training is over
  compiled         torch.compile with batch sizes that change
  lazy_dynamo      the compiler is loaded only where something is compiled
  glance           a quick look at models and optimizers, twice in every iteration
  state            the complete state, for the other workers and for checkpoints
  storable         what a checkpoint can hold, and read back
  tensors_apart    a state as a stream, with the bytes of tensors straight from and into their memory
  state_copy       a copy of it in memory, for the guard of the learning rate

Data
  batches          samples to tensors
  loader           the script's DataLoader as the source of batches
  drawn_order      the order that the script's own sampler draws
  iterable         an IterableDataset: a stream that every worker reads alike
  shard_processes  shards that processes read

Memory
  micro_batches    a batch that does not fit is computed in parts, exactly
  worker_batches   the batches of several workers in one process
  running_statistics  those of batch norm, of several workers in one process
  repeatable       what a repeated forward pass must find as it was
  memory           what fits into the memory of a worker
"""

from worker_hooks.torch import lazy_dynamo

lazy_dynamo.install()  # before anything else of torch is imported

from worker_hooks.run import Run  # noqa: E402
from worker_hooks.torch.join import attach, before_all, shards  # noqa: E402

__all__ = ["Run", "attach", "before_all", "shards"]
