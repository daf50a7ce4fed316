"""Jobs that another launcher has started, such as torchrun, srun, mpirun or accelerate. In reading order:

place         where the processes of such a job meet, by the variables of its launcher
meeting       the store through which they tell each other what they need
job           the job, as each of its processes knows it
adopt         makes of such a process a worker, as if `dynamix launch` had started it
job_config    the configuration on which they agree
attempts      the earlier attempt of a job that its launcher has started again
roles_here    servers and variables of the workers on a machine, for sums over BytePS
begin         rank 0 begins the run: folder, arbitrator, records
duty          what the companion is told by the worker that starts it
companion     the process beside the workers of a machine, which outlives them
workers_here  these workers, as the companion sees them
servers       the scheduler and the servers there
records       the companion beside rank 0: it keeps the records, runs the arbitrator, writes the summary
receiving     records of other machines, as they come to rank 0's
mirror        the companion on another machine: it sends their records to rank 0's
proven        connections between companions, which prove that they know the token of the run
"""
