"""A simulated cluster in which policies are trained and compared. In reading order:

cluster      many clusters at once, as arrays: one call simulates one window of training in each
scenario     one cluster and its training as a YAML file; the files that ship are in scenarios/
training     trains a policy on simulated clusters
contest      compares policies: time to the target accuracy
recorded     reads a real run back, decision by decision
calibration  fits a scenario to recorded runs, and tests its predictions
parallel     independent tasks in several processes
replay       what another policy would decide in a recorded run
"""
