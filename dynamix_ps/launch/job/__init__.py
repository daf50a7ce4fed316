"""The launcher. `run` is one run from top to bottom.

Before the start
  code_sync      copies the job's code to the hosts

While the roles run
  run            prepares, supervises and concludes a run
  run_hosts      all hosts of a run: prepares them, starts all roles, receives their events
  instructions   what each host is told before its roles start
  host_state     what the launcher knows of a host
  role_state     what the launcher knows of a role
  elastic_hosts  the same hosts where workers and servers of an elastic job leave and join
  supervise      notices the end of the run, and stops the roles in order
  restarts       when a lost worker or server is started again
  arrivals       hosts that come into a job that goes on: lost ones that are back, and new ones
  away_hosts     the hosts that an elastic job goes on without, and when the launcher tries them again
  start_over     on which hosts a job that was lost as a whole begins again
  verdict        decides whether the run goes on, is complete or has failed; pure
  observe        records and shows the run while it goes on
  watch_events   what the watch of the arbitrator writes, as events of the run
  logs           the output of a role: its file and its last lines
  shown_output   the output of all roles on the terminal; of a flood, some
  interrupts     Ctrl-C and other signals to the launcher

From another process
  ask_to_leave   asks the launcher to let a worker leave
  ask_to_join    asks the launcher to start a worker again that is gone
"""
