"""TCP counters per connection: from eBPF in the kernel, else from sock_diag, else from /proc/net. In reading order:

  connection        what every source yields: absolute counters of connections
  meter             from absolute counters to totals and rates
  monitor           the network metrics of one process, from the best source that works

The sources
  sources           which of them can be used here, and why not
  sockdiag          this process's connections, without privilege
  own_sockets       which connections of this process belong to the data plane
  procfs            counters of the whole network namespace, the last resort
  ebpf              connections of watched processes, from eBPF programs in the kernel
  program_cache     keeps compiled programs in the user's cache folder
  program           a compiled program, as it is kept and given to the kernel
  compiler          compiles it for the running kernel
  btf               where fields lie in the structs of the running kernel
  bcc_loader        finds bcc, the compiler's library
  loaded_program    a program in the kernel
  bpf               the system call for maps and functions in the kernel
  foreign_sockets   copies of another process's sockets
  permission        whether this process may load eBPF programs

The network probe: one privileged process per host, for processes that may not load eBPF programs
  probe             the process
  probe_server      serves many clients in one thread, and checks what each may see
  probe_socket      its socket
  probe_protocol    requests and replies
  probe_start       what roles know of it while it starts
  probe_client      the probe as a source of network metrics
  owner             the role of a watched process
  host_traffic      traffic between the processes of the host, for `dynamix probe`
"""
