"""Policies on simulated clusters of many kinds.

policies           every policy on every scenario that ships
clock              what tiles, cliffs, shared hosts, heat and work that comes back cost every policy
ceiling            how much an oracle, and so any choice of batch sizes, can gain
pid_published      whether `pid` matches the published results of dynamic batching
stigmergy          decisions without a centre, beside the central agent and its rivals
scaling            8 to 1,024 workers on networks that change: the agent that ships, PPO and the learner of DYNAMIX
scaling_rehearsed  64 and 256 workers on such networks, with real gradients (rehearsed)

unsteady           clusters of both: links and speeds that change while training runs
scaling_page       figures, tables and picture of `scaling`
stigmergy_page     figures, tables and picture of `stigmergy`
agent_runs         runs of the structured policy on many simulated clusters at once
"""
