"""The network probe: one privileged process per host, for processes that may not load eBPF programs.

process           the process
server            serves many clients in one thread, and checks what each may see
listening_socket  the socket of the probe
protocol          requests and replies
start             what roles know of the probe while it starts
client            the probe as a source of network metrics
owner             the role of a watched process
host_traffic      traffic between the processes of the host, for `dynamix probe`
"""
