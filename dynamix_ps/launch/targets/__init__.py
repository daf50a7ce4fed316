"""How the launcher reaches the agent of a host. A batch system is a folder; a job loads it by name.

choice        which target reaches the hosts of a job
agent_link    what every target offers, and the agent within the launcher
host_links    the links to all agents of a job, and the loop that serves them
command_link  an agent behind the standard streams of a command
ssh           that command for OpenSSH
slurm         the nodes of a Slurm job, and the batch script of `dynamix sbatch`
kubernetes    the pods of a Kubernetes job, and the manifests of `dynamix k8s`
ray           the nodes of a Ray cluster
"""
