"""The calls between workers and the arbitrator: messages, checks, authentication, client and server."""

from dynamix_ps.rpc.fork import switch_off_fork_handlers

switch_off_fork_handlers()
