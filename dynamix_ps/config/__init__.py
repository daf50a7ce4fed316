"""The configuration of a job, and the variables of its processes. In reading order:

schema            every key of a cluster file, with its default
descriptions      what the schema says of its keys, for those who show it
policies          the sections of the policies
load              reads and checks a cluster file
yaml_lines        YAML with the line of every key, for errors
validate          reads YAML into a strict model, with all errors at once
rules             rules between keys
host_rules        those of hosts
without_file      the configuration of a job without a cluster file
resolve           writes out what a cluster file leaves to us
role_hosts        which host each role is on
host_list         hosts as the command line names them
role_environment  the variables of one role of BytePS
variables         all variables that a run has
kept_files        files in the cache folder, which nobody else may have written
"""
