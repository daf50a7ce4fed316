"""What a training tells about itself. In reading order:

training_observer   events, and one record per window
account             what all trainings of one process have done together
stopwatch           how the training thread spends an iteration
window              from iterations to window records
change              detects that the cluster has changed
training_progress   how much of the training is done
stall               names the missing workers when the sum does not come
listeners           loggers of the script that hear what is told
reporter            carries events and records out of the training thread
telemetry           adds measurements of kernel and machine
garbage             measures the time of garbage collection
"""
