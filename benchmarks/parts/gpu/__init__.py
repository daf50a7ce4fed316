"""The checks of `benchmarks.parts.gpu_check`: what they check, how they run, and their workers."""
