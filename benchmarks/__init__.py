"""Benchmarks of DYNAMIX; `dynamix bench` in a checkout. No package that is installed imports them.

cli                 `dynamix bench`
suite               grids of trainings on real BytePS
report              pages from their tables
results             pages and tables that are kept
parts               what single parts cost
studies             questions about policies and training
testbed             several hosts on one machine
workloads           data sets, models and training scripts
"""
