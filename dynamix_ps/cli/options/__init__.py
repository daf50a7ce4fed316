"""Options that several commands have, or that are one value:

one_value     options of a command as one value
host_options  by which a command names its hosts
policy_name   the name of a policy as an option
without_file  a job without a cluster file
"""
