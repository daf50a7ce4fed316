"""Releases what a run holds on a host outside its folder, whatever its end was.

`holdings` is the record of it, `release` ends processes and removes the rest, and the `reaper` is the process that does
so when the launcher or an agent is killed.
"""
