"""The state of models and optimizers in torch. In reading order:

whole          the complete state, for the other workers and for checkpoints, which can read it back
tensors_apart  a state as a stream, with the bytes of tensors straight from and into their memory
state_copy     a copy of it in memory, for the guard of the learning rate
"""
