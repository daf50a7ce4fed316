"""Trains policies on simulated clusters. In reading order:

trainer        the training loop: windows of many clusters, then an update
scenario_draw  scenarios as the clusters to train on
parallel       independent tasks in several processes
gym_env        one cluster as a gymnasium environment
"""
