"""The control plane's wire: messages, who may speak, and the worker's side of it."""
