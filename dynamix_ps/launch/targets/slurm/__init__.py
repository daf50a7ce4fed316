"""A Slurm job: its nodes as hosts, and the batch script of `dynamix sbatch`."""
