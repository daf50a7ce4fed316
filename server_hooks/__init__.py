"""What runs inside the scheduler and the servers. In reading order:

scheduler          the scheduler role, with the arbitrator beside it
arbitrator_watch   starts the arbitrator, restarts it, stops it
server             the server role
membership         what a server does when a worker of an elastic job is lost
monitor            reports of connections and machine, from both roles
peer_watch         ends a role whose peers are all gone
byteps_entry       becomes a BytePS server or scheduler
"""
