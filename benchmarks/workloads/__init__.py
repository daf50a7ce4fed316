"""Trainings of the benchmarks: data sets, models, and one training script per framework."""
