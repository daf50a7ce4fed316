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
    launch              seconds from the command to the first iteration on several hosts, beside torchrun
    decision            time of a decision of a policy
    decision_path       modules and calls from a closed window to a published plan
    structure           how large the code is, and limits that it must not pass
    trailer             what the values behind the gradients cost, by the number of workers
    reporters           how soon a plan is out with hundreds of workers, and what the arbitrator takes up
    sim_speed           simulated iterations per second
    batch_times         time of a step over batch size on this machine: steps, cliffs, contention, heat
    ppo_reference       our PPO against a published one on a public task
    gpu_check           everything that needs a GPU

Shared:

    class_table         all classes of some packages, as their sources define them
    roles               scheduler, servers and workers of a benchmark run
    comm_worker         a worker of `comm`
    comm_curve_worker   a worker of `comm_curve`
    comm_limits         what sums over a network can reach at best, and the bars
    output_worker       a worker of `output`
    launch_worker       a worker of `launch`
    first_hour_evaluation   a training of `first_hour` in which worker 0 alone evaluates
    reporter_process    a process that stands for many workers in `reporters`
    ppo_trainings       the tasks of `ppo_reference`, and one training
    memory_floor        the least time that a sum needs in shared memory
    probe_role          a role of `probe`
    gpu_checks          the checks of `gpu_check`
    gpu_run             runs them one after the other
    gpu_worker          a worker of one check
"""
