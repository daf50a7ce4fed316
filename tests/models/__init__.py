"""Models: protocols that run on fake networks, in any order of what can happen."""
