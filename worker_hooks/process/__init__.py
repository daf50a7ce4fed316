"""The process of a worker: how it was started, and how it ends. In reading order:

launched     how this process was started: refused where nothing connects it with the others
place        one process is a worker: processes that it starts are refused
failure      how a worker ends
termination  SIGTERM: a checkpoint of the last complete iteration, then the end
"""
