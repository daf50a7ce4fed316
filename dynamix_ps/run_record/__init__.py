"""What a run writes, and its state built from that. In reading order:

run_folder      the folder of a run, and what lies where
manifest        what was run, with what, where
json_lines      files of JSON lines, written and read while they grow
line_fields     what their fields hold
requests        what commands ask of the launcher meanwhile
role_files      those of all roles
iteration_mark  in which iteration a worker is
run_state       the state of a run so far, from these lines: which part takes in which line
worker_states   the workers
arbitrator_state  plans, and which workers applied them
progress_state  evaluations, pauses, the time to go
losses          workers that it lost, or that left
model           records of a worker, a plan, a degradation
evaluations     what was measured on test sets
traffic         bytes of all connections
values          numbers that may be unknown
resumption      where a run goes on from, and what is left to train
silent_roles    which servers have stopped reporting
tables          windows, links, servers and plans as CSV
"""
