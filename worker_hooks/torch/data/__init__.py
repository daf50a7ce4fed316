"""Batches in torch. In reading order:

batches          samples to tensors
loader           the script's DataLoader as the source of batches, in the order that its sampler draws
iterable         an IterableDataset: a stream that every worker reads alike
shard_processes  shards that processes read
"""
