"""What single parts cost and reach, each on its own: `python -m benchmarks.parts.NAME --json FILE`."""
