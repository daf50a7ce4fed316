"""The processes that benchmarks of parts start: roles of a run, workers that measure, and those beside them."""
