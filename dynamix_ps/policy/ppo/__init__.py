"""DYNAMIX's agent in plain numpy: agent.py tells the story, the other files one step of it each."""
