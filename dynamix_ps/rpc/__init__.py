"""The control plane's wire: messages, who may speak, and the worker's side of it."""

from dynamix_ps.rpc.fork import switch_off_fork_handlers

switch_off_fork_handlers()
