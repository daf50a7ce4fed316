"""Workers and servers come and go while training runs: who is a member of which round. Pure but for one file.

In reading order:

    messages       what coordinator, workers and servers say to each other
    journal        what the coordinator writes to disk, and the members that follow from it
    losses         when a suspicion is confirmed
    change         what has been answered in one change of generation
    generations    from a confirmed loss to the decision that all follow
    coordinator    the coordinator: generations, and who comes and leaves
    sums           what decisions need of sums
    effects        what follows from an event in a worker or server
    known_members  the members as one worker knows them
    worker         what a worker does: freeze, resume, take others in, begin, leave
    ring_worker    its rounds where the sums are made in a ring
    server         what a server does
    journal_file   the journal on disk; the only module here that is not pure
"""
