"""Workers and servers come and go while training runs: who is a member of which round. Pure but for one file.

In reading order:

<<<<<<< HEAD
    messages       what coordinator, workers and servers say to each other
    journal        what the coordinator writes to disk, and the members that follow from it
    losses         when a suspicion is confirmed
    change         what has been answered in one change of generation
    generations    from a confirmed loss to the decision that all follow
    coordinator    the coordinator: generations, and who comes and leaves
    effects        what follows from an event in a worker or server
    sums           what decisions need of sums
    known_members  the members as one worker knows them
    worker         what a worker does: freeze, resume, take others in, begin, leave
    ring_worker    its rounds where the sums are made in a ring
    server         what a server does
    journal_file   the journal on disk; the only module here that is not pure
=======
    messages         what coordinator, workers and servers say to each other
    schedule         who is planned for which round; follows from the sums alone
    data_messages    what the data plane sends, as far as membership depends on it
    journal          what the coordinator writes to disk, and the members that follow from it
    losses           when a suspicion is confirmed
    change           what has been answered in one change of generation
    generations      from a confirmed loss to the decision that all follow
    coordinator      the coordinator: generations, and who comes and leaves
    round_in_flight  what a worker keeps of the round it is in
    worker_rounds    what a worker does by itself: push, complete, leave
    following        a newcomer follows a worker until it has caught up
    worker           a worker's side: freeze, resume, take the state, let newcomers follow
    ring_worker      a worker's rounds over a ring: which ring there is, and what is complete
    journal_file     the journal on disk; the only module here that is not pure
    server           a server's side, as the reference for the data plane
>>>>>>> ringcore
"""
