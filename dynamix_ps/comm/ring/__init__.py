"""Ring all-reduce by torch.distributed over gloo. `gloo` is the data plane.

gloo         the data plane
group        one ring: the members of one generation
store_watch  whether the processes of a ring live, by their stores
codecs       values in fewer bytes
compressed   sums whose values travel so
sums         the buffers of a worker in sums over the ring, and the sums that the worker keeps
rounds       the rounds of a ring, which the control plane can give up
elastic      goes on with a new ring when a worker is lost or leaves
"""
