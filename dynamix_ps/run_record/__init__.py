"""What a run writes, and its state built from that. In reading order:

run_folder      the folder of a run, and what lies where
manifest        what was run, with what, where
json_lines      files of JSON lines, written and read while they grow
line_fields     what their fields hold
requests        what commands ask of the launcher meanwhile
role_files      those of all roles
iteration_mark  in which iteration a worker is
run_state       the state of a run so far, from these lines
model           its parts: workers, plans, degradations
losses          workers that it lost, or that left
evaluations     what was measured on test sets
traffic         bytes of all connections
values          numbers that may be unknown
resumption      where a run goes on from, and what is left to train
silent_roles    which servers have stopped reporting
tables          windows, links, servers and plans as CSV
"""
