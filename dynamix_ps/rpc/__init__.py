"""The calls between workers and the arbitrator (arbitrator.proto).

The arbitrator's side:

server      the gRPC server
auth        who may call
channel     how much a caller may take up, and the settings of a worker's connection
calls       the calls on plain bytes
refusals    why a call is refused

Both sides:

session     how both sides prove that they know the token of the run
encryption  connections with certificates
convert     between protobuf and messages, with checks
membership_codec  messages of membership as they travel
fields      checks of single values
plan_rules  checks of plans

The side of workers and other roles:

access      where the arbitrator is, and how to prove who calls
client      registers, reports and follows the plans, in threads of its own
link        one connection of a worker
proven_channel  calls of a client with proofs
observer    sends what a role sees of its connections
member      follows changes of membership, in an elastic job
backoff     waiting times between attempts
fork        keeps gRPC out of forked children
"""

import os

from dynamix_ps.rpc.fork import switch_off_fork_handlers

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise each stranger who is refused makes gRPC write a line
switch_off_fork_handlers()
