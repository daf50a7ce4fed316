"""What runs inside the training process. In reading order:

  torch, mxnet     the hooks: attach()
  run              what a script sees of its training
  joining          two ways into a job: from its start, or late
  training         the parts of a training, and the story of one iteration
  adapter          what a framework does in its own way, its parameters and its states: interfaces
  backward         the backward pass, and the sum that follows
  sums             all workers do the same with the same weights, or all stop
  replicas         parameters that change, on all workers alike
  data             the samples, and which worker takes which of them
  plans            sizes and learning rates, the same for all workers at the same iteration
  size_choice      what chooses the sizes where no arbitrator does, loaded by name
  progress         where a training is: passes, batch sizes, steps
  evaluator        what is measured beside the iterations
  checkpoints      the state of a training, saved and put back
  resuming         where a training begins: anew, or at the place of a checkpoint
  ending           how a training ends by SIGTERM
  membership_changes  how workers and servers enter it, and leave it on notice
  loops            the loops that a script writes, over passes and batches
  workers          which workers this process computes for: one, in a rehearsal all
  gathers          rows of all workers, for losses over pairs in a batch

Before, between and after the iterations
  settings         what the environment tells a worker
  session          data plane, run folder and arbitrator of a worker
  before_all       what worker 0 does before that, while the others wait
  start            checks before training begins

  iteration        the iteration in flight, and what a script may ask of it
  sampling         which samples each worker takes
  loading          from sample numbers to batches
  exchange         the exact global gradient, and what all workers learn beside it
  planning         sizes and learning rates of the coming iterations
  saved            what checkpoints hold
  memory           what fits into the memory of a worker
  membership       how a worker of an elastic job meets the others, and newcomers
  process          how the process of a worker was started, and how it ends
  observe          what training tells about itself: times, windows, progress, stalls, reports
"""
