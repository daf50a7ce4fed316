"""The control plane's wire: messages, who may speak, and the worker's side of it.

gRPC's own handling of fork is switched off here, before gRPC starts: it runs code of its threads in the child,
and a training process that forks (data loaders do) then gets children that crash or hang. Our client has no
use for it, since it never speaks from a child.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
