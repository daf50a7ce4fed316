"""Per-connection TCP counters: from eBPF in the kernel, else sock_diag, else /proc/net. Start at connection.py."""
