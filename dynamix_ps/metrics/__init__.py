"""Measurements of a role: network, machine, gradients. In reading order:

network      TCP connections of the data plane
system       CPU and memory of this process
gpu          the GPU of this process
noise        the gradient noise scale
role_report  joins network and machine to the report of a role
"""
