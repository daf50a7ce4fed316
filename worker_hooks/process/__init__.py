"""The process of a worker: how it was started, and how it ends. In reading order:

launched     how this process was started: by which launcher, as which of how many processes
adopted      takes part in a job that another launcher has started, such as torchrun
place        one process is a worker: processes that it starts are refused
work         what the worker computes, and on what, as a digest
freed_memory what an iteration frees stays with the process
failure      how a worker ends
termination  SIGTERM: a checkpoint of the last complete iteration, then the end
"""
