"""Many simulated clusters at once, one window of training per call. In reading order:

simulator            one window, from batch sizes to what the policies see
parameters           what describes the clusters, as arrays
effect_fields        the part of the parameters that describes effects
traces               how machines and links change over time
cost                 how long an iteration takes
effects              what real machines have and a straight line has not: tiles, cliffs, shared hosts, heat, recurrence
learning             how much an iteration improves the model
measure              what hook, probe, machine and servers would measure
views                the window as policies of live clusters see it
randomise            clusters drawn at random, to train policies on
"""
