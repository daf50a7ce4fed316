"""Learning of the PPO. What only acts needs none of it. In reading order:

rollout       experience: what the agent did and which rewards followed
gae           advantages
update        new weights from a batch
adam          the optimizer
reward_scale  the unit of rewards
train         the whole loop on any gymnasium environment
"""
