"""The protocol of membership on a fake network. `python -m tests.models.membership.checker` runs many seeds.

checker         jobs and faults, and tallies of what went wrong
world           a job on a fake network, and the invariants that are checked in it
network         its channels, partitions and slow links
training        its training, whose state is its history
faults          faults at random moments
points          faults at every point of a round, alone and in pairs
ring            a worker of a ring, which has no servers
ring_messages   what workers of a ring say to each other
ring_entries    faults at every stage of the entry of a worker into a ring
ring_points     faults at every point of a round of a ring, and of the change after it
rules           rules of membership, each switched off
ring_rules      those of a ring
"""
