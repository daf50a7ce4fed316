"""One process stands for all workers of a cluster: gradients are real, times are simulated. In reading order:

session            what takes the place of a cluster for the hook: the only seam
simulated_cluster  how long an iteration takes, and what kernel and machine would report
records            what all workers write and report
local_arbitrator   the arbitrator in this process

Several policies and seeds, `dynamix rehearse`
scenarios          the cluster that a cluster file and a scenario describe together
study              which runs there are, each a process; runs what is missing
script_run         the process of one of them
processes          some processes at a time
outcome            what a run folder tells of one run
comparison         time to a target over paired seeds
power              what a number of paired seeds can show
report             the comparison as a page, a table of all runs, and pictures

Several learning rates, `dynamix rehearse --find-rate`
rate_race          which rates are tried, and which one wins
rate_runs          the processes that try them
rate_trial         one rate, within its process
"""
