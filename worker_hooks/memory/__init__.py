"""What fits into the memory of a worker. In reading order:

memory_ceiling  how many samples a worker computes at once
divided_call    what must hold for a batch in parts to be exact
out_of_memory   lets an allocation fail where Linux would end the process
"""
