"""Decisions without a centre: every worker runs the same actor, and they coordinate by traces. Pure.

Nobody decides for another worker. An actor knows its own windows, what all workers read in the gradient sum, and the
traces: a few numbers per worker that are summed with the gradients, so all workers read the same ones. It lays its own
traces, which evaporate, and chooses its own next size. The sizes are summed in the same way. So all workers know the
global batch exactly before they compute it, and the gradient stays exact.

    settings    how strong traces are, and how fast they evaporate
    traces      the traces of one process's workers, and the field that all workers read in the sum
    supply      by when which worker has computed how many samples, from the field
    total       the global batch, from the field: the same rule on all workers
    moves       from the size an actor would like to its next one: damped, so that not all jump at once
    actor       one worker
    policy      all workers of a simulated cluster in one process

Agents that coordinate by traces are stigmergic multi-agent reinforcement learning (S-MADRL), which we know through
summaries only. All rules here are chosen by us. Training their numbers gains next to nothing.
"""
