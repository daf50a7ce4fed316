"""The agent of a host, and the processes of its roles.

agent          the process of an agent, and its lease
host_agent     what a run has on one host: roles, quotas, probe, ports, files
host_facts     what the host is and has
code_files     the folder of the job's code, and digests of its files
reach          listens for other hosts, connects to them, measures rates
own_address    the address under which the other hosts reach this one
role_group     the started roles: output, ends, signals
process        one role as a process
parent         a process that ends when its parent dies
forked_roles   asks the fork server for workers
fork_server    the process that has torch imported, from which workers are forked
forked_script  a script as a new Python would run it
shown_process  the command line and the environment of a forked process in /proc
exit_reports   tells the coordinator of an elastic job which roles have ended, and which workers are to leave
network_probe  finds or starts the network probe of the run
local_group    one process per GPU of a worker (`dynamix-bpslaunch`)
affinity       the cores of each of these processes
"""
