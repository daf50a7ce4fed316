"""What a training tells about itself. In reading order:

training_observer   events, and one record per window
account             what all trainings of one process have done together
stopwatch           how the training thread spends an iteration
window              from iterations to window records
change              detects that the cluster has changed
training_progress   how much of the training is done
stall               names the missing workers when the sum does not come
reporter            carries events and records out of the training thread
worker_files        what a worker writes into the run folder
telemetry           adds measurements of kernel and machine
"""
