"""One run, from the cluster file to its summary. The launcher decides; on every host an agent does what it says.

A room may import those below it.

  job        the launcher: starts the run, supervises it, decides how it ends
  preflight  refuses what cannot work, before anything is started; `dynamix doctor`
  targets    how the launcher reaches the agent of a host
  host       the agent of a host, and the processes of its roles
  emulation  workers of different speed on one machine
  cleanup    releases what a run holds outside its folder, whatever its end was
  roles      the roles of a job: place, command line, environment, ports, certificate
  messages   what launcher and agents tell each other
"""
