"""One simulated cluster and its training as a YAML file. In reading order:

load     reads, checks and writes a scenario
parts    the sections of a scenario
effects  which effects of real machines it has, and the same cluster without
"""
