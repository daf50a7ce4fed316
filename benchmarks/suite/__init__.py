"""Policies side by side on real BytePS. In reading order:

  grid             which scenarios, workloads, contenders and seeds are combined
  scenario         a cluster emulated on one machine: cores, links, and how they change
  workloads        what is trained: data, model, optimizer
  contenders       the policies that take part, and how much each was tuned
  tuning           which fixed sizes are dropped after some seeds

Running it
  runner           one cell after the other, each as a process
  cell             one training on real BytePS, and its result
  placement        roles in network namespaces, or all on loopback
  machine_lock     one grid at a time on a machine
  machine_speed    how fast the machine is now, to compare cells of different days
  cleanup          removes what killed runs have left

Results
  result_of_run    from a run folder to a result
  results          the result of a cell, and its file
  grid_folder      the folder of a grid
  overview         what there is to run, and how far a grid is
  statistics       what the results say about the contenders
  tables           results as CSV tables
"""
