"""Benchmarks of single parts: `python -m benchmarks.parts.NAME --json FILE`."""
