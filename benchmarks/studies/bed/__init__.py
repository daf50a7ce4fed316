"""Runs on the test bed or its recordings, beside the simulator, rehearsals and each other.

clock                whether rehearsed clocks come to those of real runs, measured side by side
ring_or_server       ring and parameter server side by side, with equal and with adaptive sizes
calibration          simulated runs against recorded ones
calibration_record   records the real runs for calibration
rehearsal            rehearsed runs against recorded ones
rehearsed            rehearsed runs against the cells of the published grid
quota_waiting        how long workers with CPU quotas wait for each other

cells                runs on the bed, which a later call adds to
clock_cell           one run of `clock` on the bed
clock_answers        seconds per sample, their ratios, and how near the rehearsed ones are
ring_or_server_cell  one run of `ring_or_server`
"""
