"""The hook for torch. Scripts import it as `dynamix_ps.torch`. In reading order:

join             attach(), before_all() and shards(): how a script joins the other workers
adapter          what a training does in its own way in torch
script_calls     what a script calls in torch by itself, and what it means for its training
step_hooks       around every step of an optimizer
watched_calls    what the script calls in torch itself
summed_gradients  what the last sum has left, where losses are sums
gradients        the exchange of gradients: buckets that fill while backward runs
bucket           one bucket: where gradients are put, summed, and handed to the parameters
late_gradients   gradients that come after run.backward() has returned, and who waits for them
late_weights     weights that step() has not changed yet, and who waits for them
late_steps       steps of an optimizer that are taken bucket by bucket, when their sums are there
places           the places of gradients in a bucket, and what the script keeps of them
gradient_hooks   hooks of the script on gradients, which wait for the sum
parameters       what a training changes, watched from batch to batch
averages         moving averages of the weights
schedulers       the script's schedulers, which may be far from their end when training is over
compiled         torch.compile with batch sizes that change
lazy_dynamo      the compiler is loaded only where something is compiled
glance           a quick look at models and optimizers, twice in every iteration

data             batches in torch
loss             what a loss tells of itself
state            the state of models and optimizers
memory           batches that are computed in parts
"""

from worker_hooks.torch import lazy_dynamo

lazy_dynamo.install()  # before anything else of torch is imported

from worker_hooks.run import Run  # noqa: E402
from worker_hooks.torch.join import attach, before_all, shards  # noqa: E402

__all__ = ["Run", "attach", "before_all", "shards"]
