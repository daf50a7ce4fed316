"""What the agent sees: the network (network/), the machine (system.py), the gradients (noise.py)."""
