"""Which samples each worker takes. Pure. In reading order:

sampler        which samples each worker takes, those that are owed first
token_sampler  the same where sizes are budgets of tokens
shards         which worker reads which shard next, decided by all alike
shard_list     what a script says about its shards
"""
