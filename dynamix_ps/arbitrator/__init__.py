"""The service that turns window records into plans. In reading order:

service     receives what workers and roles report, decides, publishes plans
registry    which workers exist and which are alive: leases and incarnations
windows     collects the records of a window and says when it can be decided
links       joins what both ends of a connection report
flow_rates  rates of one connection between two reports
diagnosis   which worker delays the others, and whether compute or its link is the cause
coordination  of an elastic job: streams of roles around the coordinator of membership
places      of an elastic job: which workers are not there, and plans of the others
planner     from a policy's answer to a plan: bounds and version numbers
journal     every decision on disk; a restarted arbitrator reads it back
"""
