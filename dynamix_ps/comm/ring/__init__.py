"""Ring all-reduce by torch.distributed over gloo. `gloo` is the data plane.

gloo         the data plane
group        one ring: the members of one generation
stores       where others can meet, and whether their processes live
codecs       values in fewer bytes
compressed   sums whose values travel so
sums         the buffers of a worker in sums over the ring, and the sums that the worker keeps
rounds       the rounds of a worker whose ring changes: does what dynamix_ps/membership/ring_worker.py says
elastic      a ring that goes on when a worker is lost or leaves, as the control plane sees it
"""
