"""Policies: what turns the records of a window into batch sizes. Pure; see base.py."""
