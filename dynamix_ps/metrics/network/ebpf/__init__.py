"""Connections of watched processes, from eBPF programs in the kernel.

collector        what the programs have counted, per connection
program_cache    keeps compiled programs in the user's cache folder
program          a compiled program, as the cache keeps it and the kernel takes it
compiler         compiles `program.c` for the running kernel
btf              where fields lie in the structs of the running kernel
bcc_loader       finds bcc, the compiler's library
loaded_program   a program in the kernel
bpf              the system call for maps and functions in the kernel
foreign_sockets  copies of the sockets of another process
"""
