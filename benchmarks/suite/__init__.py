"""Controllers side by side on real BytePS: which trainings run, how, and what their results say.

What there is to run:

    grid                scenarios x workloads x contenders x seeds, in order
    scenario            emulated cores and links, and how they change
    simulated           the same cluster in the simulator
    workloads           data set, model, optimizer, target (workloads.yaml)
    contenders          policies by name, their origin and tuning

How it runs:

    runner              one cell after the other, each a process with a time limit
    cell                one training under the launcher
    ddp_job             or one over torch's DistributedDataParallel, without it
    placement           where the roles run: hosts of a test bed, or loopback
    machine_lock        one grid at a time on a machine
    machine_speed       what the machine computes just before a cell
    cleanup             removes what killed cells left behind

What it leaves:

    result_of_run       run folder -> result of the cell
    results             the result of one cell as JSON
    metric              how pages speak of what a workload is judged by
    grid_folder         the folder of a grid: results, logs, lock
    tables              all results as CSV, from which the report is made
    tuning              fixed sizes that need no further seeds
    intervals           95 % intervals over seeds, also where scenarios share them
    statistics          one race per scenario and workload; times, ratios, intervals
    overview            tables for the terminal
"""
