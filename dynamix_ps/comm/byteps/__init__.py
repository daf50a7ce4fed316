"""The parameter servers of BytePS.

comm            the data plane, and what it needs of BytePS's plugin for a framework
torch_comm      the same with the plugin for torch
mxnet_comm      the same with the plugin for MXNet
exchange        the C functions of our BytePS that make the sums
placement       which server has which piece of a buffer
links           how fast the links of the hosts are, measured at the start
segments        memory that processes of one host share
host_memory     buffers in segments: which processes map them, and which ones sum there
device_buffers  buffers on a GPU: copied to the host, summed there, copied back
elastic         sums that go on when a worker or a server is lost
server_watch    whether the servers live for which a worker waits
"""
