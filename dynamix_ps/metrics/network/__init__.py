"""TCP counters per connection: from eBPF in the kernel, else from sock_diag, else from /proc/net.

connection   what every source yields: absolute counters of connections
meter        from absolute counters to totals and rates
monitor      the network metrics of one process, from the best source that works
sources      which sources can be used here, and why others cannot
sockdiag     the connections of this process, without privilege
own_sockets  which connections of this process belong to the data plane
procfs       counters of the whole network namespace, the last resort
permission   whether this process may load eBPF programs
probe        one privileged process per host, for processes that may not load eBPF programs
ebpf         connections of watched processes, from eBPF programs in the kernel
"""
