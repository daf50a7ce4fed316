"""From sample numbers to batches, and what is measured on them. In reading order:

script_errors      errors of a script that come from what the hook does differently, or from lack of memory
batches            from sample numbers to batches, prepared ahead; what a stream is
data_source        where the samples of a batch come from: a data set, a loader of the script, or a stream
script_loaders     what loaders of all frameworks share
drawn_order        the order that a sampler of the script draws
shard_source       shards as the source of batches
shard_reader       reads the shards of one worker in a thread
shard_stream       batches out of shards
common_stream      batches out of a stream that every worker reads alike
data_set           what a data set must be
global_generators  random generators that stay as the script has them
fingerprint        how workers find out that their data sets differ
evaluation         each worker's share of an evaluation
"""
