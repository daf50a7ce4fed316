"""One run, from the cluster file to its summary. The launcher decides; on every host an agent does what it says.
In reading order:

  job             one run from top to bottom, as the launcher sees it: prepare, supervise, conclude

Before the start
  preflight       refuses what cannot work, before anything is started
  doctor          the checks of `dynamix doctor`
  check           one line of what is found
  inspection      asks all hosts what they are, and whether they reach each other
  host_checks     whether what they tell fits together
  host_table      the same as a table
  code_files      the folder of the job's code, and digests of its files
  code_sync       copies it to the hosts
  plan            name, host, command line and environment of every role
  devices         the GPU of each worker of a host

The launcher, while the roles run
  authority       certificates for the hosts, with which their roles encrypt
  run_hosts       all hosts as one: prepares them, starts all roles, hears what happens
  role_state      a role, as its agent has told of it
  elastic_hosts   what is different where hosts, workers and servers go and come back
  supervise       notices that the run is over, and stops the roles in order
  restarts        when a lost worker or server is started again
  away_hosts      which hosts an elastic job goes on without, and when it reaches them again
  start_over      on which hosts a job that was lost as a whole begins again
  verdict         decides whether the run goes on, is complete or has failed
  observe         records and shows the run while it goes on
  logs            what roles print: one file per role
  shown_output    the same on the terminal, line by line; of a flood, some
  host_links      the links to all agents, and the loop that serves them
  interrupts      Ctrl-C and other signals to the launcher
  ask_to_leave    asks it, from another process, to let a worker leave
  ask_to_join     asks it so to start one again that is gone

Between launcher and agents
  agent_messages  what they tell each other
  targets         which way leads to the hosts of a job
  agent_link      what a way to an agent is, and that within the launcher
  command_link    the way by the streams of a command
  ssh             that command for OpenSSH
  slurm           that command for the nodes of a Slurm job, and which hosts they are
  slurm_nodes     those nodes, as Slurm's environment variables write them
  slurm_batch     the batch script of a job
  slurm_options   the options that Slurm's sbatch has
  kubernetes      that command for the pods of a Kubernetes job, and which hosts they are
  tls_command     that command itself: standard streams over TCP with TLS
  tls_relay       passes bytes on between a TLS connection and two descriptors
  job_secret      the token and the certificate that the pods of a job share
  pods            which pods a job gets, and what each needs
  manifests       the manifests of a job
  pod_template    the pods in them
  probe_pods      the manifests of the network probe of a cluster's nodes
  ray_job         nodes of a Ray cluster as hosts
  ray_driver      the process that speaks to Ray, the only one that imports it
  ray_agent       the agent of a node, as an actor of Ray runs it
  ray_stream      the command that leads to it
  message_stream  messages over descriptors that never block
  folder_mirror   files of the run folder, which come to the launcher while they grow

On a host
  agent           the process of an agent, and its lease
  listening_agent  the same where nobody starts it: waits for its launcher to connect
  host_agent      what a run has on one host: roles, quotas, probe, ports, files
  host_facts      what the host is and has
  reach           listens for other hosts, connects to them, measures rates
  role_group      the started roles: output, ends, signals
  event_log       where the parts of the launcher tell what happens
  exit_reports    tells the coordinator of an elastic job who has ended, and which workers are to leave
  process         one role as a process
  placement       where roles run within this host, and what changes around them: here, or on a test bed
  ports           fixed ports must be free, others are picked
  own_address     the address under which the other hosts reach this one
  network_probe   finds or starts the network probe of the run

Emulated speeds
  emulate         workers of different speed on one machine
  cpu_quota       CPU quotas by control groups

One worker (`dynamix-bpslaunch`)
  local_group     one process per local GPU
  affinity        cores of each process

After the end, whatever the end was
  holdings        the record of what a run holds on a host outside its folder
  owner_lock      whether the process that holds something still lives
  cleanup         ends processes and removes what a run holds outside its folder
  reaper          the process that cleans up when the launcher or agent is killed
  shared_memory   segments that BytePS leaves behind
"""
