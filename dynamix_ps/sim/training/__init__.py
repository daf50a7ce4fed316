"""Trains policies on simulated clusters. In reading order:

trainer        the training loop: windows of many clusters, then an update
scenario_draw  scenarios as the clusters to train on
gym_env        one cluster as a gymnasium environment
"""
