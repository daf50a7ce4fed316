"""What fits into the memory of a worker. In reading order:

memory_ceiling  how many samples a worker computes at once
worker_memory   the same for the models of a training
divided_call    what must hold for a batch in parts to be exact
"""
