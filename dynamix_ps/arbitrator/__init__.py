"""The service that turns window records into plans. In reading order:

service     receives what workers and roles report, and says when a decision is due
decision    from a closed window to a plan
publication  the newest plan, and the streams that carry it to the workers
learning    updates of a policy that learns, beside the decisions
registry    which workers exist and which are alive: leases and incarnations
windows     collects the records of a window and says when it can be decided
links       joins what both ends of a connection report
flow_rates  rates of one connection between two reports
diagnosis   which worker delays the others, and whether compute or its link is the cause
coordination  of an elastic job: streams of roles around the coordinator of membership
places      which workers are there, and the sizes of the others where some are not
remembered  first sizes by the speeds of an earlier run, and the speeds of this one for the next
profile_file  these speeds in the user's cache folder
planner     from a policy's answer to a plan: bounds and version numbers
journal     what a restarted arbitrator reads back of its decisions
"""
