"""Benchmarks of single parts: `python -m benchmarks.parts.NAME --json FILE`.

    comm                iteration time with our BytePS, with gloo and with BytePS as shipped
    comm_curve          time of a sum by its size, on one host and between hosts, beside floors and limits
    hooks               what the hook costs per iteration
    elastic_sums        what it costs in an elastic job to keep gradients until their sum is complete
    server_memory       resident memory of servers over many iterations
    above_4_gib         whether sums and broadcasts of more than 4 GiB are right
    entry_copy          seconds from the first byte of the state to a newcomer that has it, by the size of the state
    rehearsal           what a rehearsal costs beside plain training
    loader              samples per second of a DataLoader, with the hook and without
    probe               what watching the network costs
    first_hour          what adapting costs a newcomer's first runs: the examples beside fixed sizes
    output              what lines on the terminal cost, and how many per second the launcher takes
    forks               seconds from the command to the first iteration on one host: forked workers beside new ones
    under_torchrun      jobs that torchrun starts: from pip install to the first plan, and beside DDP
    launch              seconds from the command to the first iteration on several hosts, beside torchrun
    decision            time of a decision of a policy
    structure           how large the code is, and limits that it must not pass
    overlap             how much of the sums between hosts computing hides
    trailer             what the values behind the gradients cost, by the number of workers
    reporters           how soon a plan is out with hundreds of workers, and what the arbitrator takes up
    sim_speed           simulated iterations per second
    batch_times         time of a step over batch size on this machine: steps, cliffs, contention, heat
    ppo_reference       our PPO against a published one on a public task
    gpu_check           everything that needs a GPU

What they stand on:

    processes           the processes that they start
    references          floors, limits and other programs with which they compare
    gpu                 the checks of `gpu_check`, one after the other, and their workers
    sources             what `structure` counts in our sources
"""
