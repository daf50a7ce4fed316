"""A Ray cluster: its nodes as hosts. Only `driver` imports Ray, in a process of its own."""
