"""A simulated cluster in which policies are raised and compared (docs/simulator.md)."""
