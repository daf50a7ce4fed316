"""Studies of the learned policy in the simulator: each a command that writes a CSV, a picture and its page."""
