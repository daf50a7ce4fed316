"""One run on this machine, from the cluster file to its summary. In reading order:

  job             one run from top to bottom: prepare, supervise, clean up, conclude

Before the start
  preflight       refuses what cannot work, before anything is started
  doctor          the checks of `dynamix doctor`
  ports           fixed ports must be free, others are picked
  plan            name, command line and environment of every role
  placement       where roles run, and what changes around them: here, or on a test bed

While it runs
  supervise       starts the roles, shows their output, notices their ends, stops them in order
  process         one role as a process
  logs            what roles print: one file per role, and prefixed lines on the terminal
  verdict         decides whether the run goes on, is complete or has failed
  observe         records and shows the run while it goes on
  interrupts      Ctrl-C and other signals to the launcher
  network_probe   finds or starts the network probe of the run

Emulated speeds
  emulate         workers of different speed on one machine
  cpu_quota       CPU quotas by control groups

One worker (`dynamix-bpslaunch`)
  local_group     one process per local GPU
  affinity        cores of each process

After the end, whatever the end was
  holdings        the record of what a run holds outside its folder
  cleanup         ends processes and removes what a run holds outside its folder
  reaper          the process that cleans up when the launcher is killed
  shared_memory   segments that BytePS leaves behind
"""
