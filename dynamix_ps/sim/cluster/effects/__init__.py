"""What real machines have and a straight line has not, one effect per module. Pure, arrays of (..., E, W).

    t = fixed + per sample * samples    is what policies assume (policy/model/compute_times.py)

tiles       steps: hardware computes whole tiles of samples
cliffs      beyond some batch each further sample takes longer
contention  workers of one host slow each other down
heat        sustained load slows a machine down, waiting cools it
recurrence  a change that comes back with a period

An effect that no scenario names costs nothing and changes no bit.
"""
