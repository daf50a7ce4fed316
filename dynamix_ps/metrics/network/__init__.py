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
  btf               where fields lie in the structs of the running kernel
  bcc_loader        finds bcc, which compiles these programs
  bpf               runs a program on demand, and reads what it has cost
  foreign_sockets   copies of another process's sockets
  permission        whether this process may load eBPF programs

The network probe: one privileged process per host, for all that may not load eBPF programs
  probe             the process
  probe_server      who may ask for what, many clients in one thread
  probe_socket      its socket
  probe_protocol    requests and replies
  probe_client      asks it, as a source
  owner             which role a watched process plays
  host_traffic      who sends to whom on the host, for `dynamix probe`
"""
