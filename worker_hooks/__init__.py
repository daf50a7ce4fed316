"""What runs inside the training process. In reading order:

  torch, mxnet     the hooks: attach()
  run              what a script sees of its training
  joining          two ways into a job: from its start, or late
  training         the parts of a training, and the story of one iteration
  adapter          what a framework does in its own way: an interface
  model_state      the state of models and optimizers in it: an interface
  backward         the backward pass, and the sum that follows
  sums             all workers do the same with the same weights, or all stop
  replicas         parameters that change, on all workers alike
  data             the samples, and which worker takes which of them
  plans            sizes and learning rates, the same for all workers at the same iteration
  progress         where a training is: passes, batch sizes, steps
  evaluator        what is measured beside the iterations
  checkpoints      the state of a training, saved and put back
  resuming         where a training begins: anew, or at the place of a checkpoint
  ending           how a training ends by SIGTERM
  membership_changes  how workers and servers enter it, and leave it on notice
  iteration        how far the iteration in flight is; refuses steps in the wrong order
  script_limits    how far the script asks to train, call after call
  loops            the loops that a script writes, over passes and batches
  script_errors    errors of a script that come from what the hook does differently
  taken_ahead      a batch that the script takes before it has trained the one before
  sampler          which samples each worker takes, those that are owed first
  token_sampler    the same where sizes are budgets of tokens
  batches          from sample numbers to batches, prepared ahead
  data_source      where the samples of a batch come from: a data set, or a loader of the script
  loader_source    what loaders of all frameworks share
  drawn_order      the order that a sampler of the script draws
  stream_source    data without sample numbers: shards and streams
  shards           which worker reads which shard next, decided by all alike
  shard_list       what a script says about its shards
  shard_reader     reads the shards of one worker in a thread
  shard_stream     batches out of shards
  common_stream    batches out of a stream that every worker reads alike
  workers          which workers this process computes for: one, in a rehearsal all
  exchange         the exact global gradient: weighted buckets, summed while backward runs
  gathers          rows of all workers, for losses over pairs in a batch
  trailer          the values after the gradients, from which all workers learn the same
  size_choice      what chooses the sizes where no arbitrator does, loaded by name: own_size, if it is there
  own_size         sizes without an arbitrator: every worker chooses its own
  plan_switch      all workers change plans at the same iteration
  departures       who leaves the job on notice, and with which sum
  entries          which workers and servers enter it while it trains, and with which iteration
  units            what sizes are worth where losses are means over tokens
  reduction        what gradients count with where losses are sums, not means
  learning_rate    the factor on the learning rate: it follows the global batch, times what the guard leaves
  schedules        schedules by number of steps that training ends far from their end
  rate_guard       takes the weights back and halves the learning rate when the loss rises
  loss_watch       whether the loss rises beyond its noise
  memory_ceiling   how many samples a worker computes at once
  worker_memory    the same for the models of a training
  divided_call     what must hold for micro-batches to be exact

Before, between and after the iterations
  weight_samples   a few numbers that show whether weights differ
  agreement        what is compared for that, and in which words workers are told
  arrival          the way of the state to a worker that enters
  handover         what such a worker gets beside the state
  settings         what the environment tells a worker
  launched         how this process was started: refused where nothing connects it with the others
  place            one process is a worker: processes that it starts are refused
  session          data plane, run folder and arbitrator of a worker
  membership       what a worker does when another one is lost, in an elastic job
  known_servers    which servers have keys there, and which the worker has met
  before_all       what worker 0 does before that, while the others wait
  start            checks before training begins
  data_set         what a data set must be
  global_generators  random generators that stay as the script has them
  fingerprint      how workers find out that their data sets differ
  evaluation       each worker's share of an evaluation
  checkpoint       positions, and checkpoints on disk
  saved_fields     reads a checkpoint field by field
  failure          how a worker ends
  out_of_memory    how errors say that memory has run out, and how to get one in time
  termination      SIGTERM: a checkpoint of the last complete iteration, then the end

  observe          what training tells about itself: times, windows, progress, stalls, reports
"""
