"""The iteration in flight, and what a script may ask of it. Pure. In reading order:

in_flight      how far the iteration in flight is; refuses steps in the wrong order
script_limits  how far the script asks to train, call after call
taken_ahead    a batch that the script takes before it has trained the one before
reduction      what gradients count with where losses are sums, not means
"""
