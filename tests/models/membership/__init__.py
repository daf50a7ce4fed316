"""The classes of live workers, servers and coordinators on a fake network.

`python -m tests.models.membership.checker` runs many schedules, and `... .broken` breaks of the code.

checker      jobs and faults, and tallies of what went wrong
broken       breaks of the real code, which the model must find (breaks.yaml, ring_breaks.yaml)
job          what is run, and what happened
world        a job on a fake network
checks       what must hold in it
processes    a worker and a server in it
trainer      the thread of a worker that trains
training     what it trains: a state that is its history
planes       its sums: over servers, or in a ring
exchange     the reference of the C++ plane: a worker's part in sums over servers
round_table  the same: a server's part
pieces       what these two send each other
network      channels, partitions and slow links
faults       faults at random moments
points       faults at every point of a round, of a change and of an entry, alone and in pairs
"""
