"""A small general PPO in plain numpy; it knows nothing of workers or batch sizes. In reading order:

settings      of network and learning
network       policy and critic, and what normalises observations
actor_critic  acts
policy_file   all of it on disk
learning      learns; can be taken away
"""
