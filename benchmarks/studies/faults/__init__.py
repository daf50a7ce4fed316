"""Faults in real runs.

campaign         kills, stops, full disks and attacks on real runs
data_plane_race  whether a sum is ever wrong while processes stop at random

fault_kinds      the faults of the campaign
fault_job        one run that a fault hits
race_worker      a worker of the race, which checks every sum
"""
