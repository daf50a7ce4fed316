"""Sizes and learning rates of the coming iterations. In reading order:

own_size       sizes without an arbitrator: every worker chooses its own
plan_switch    all workers change plans at the same iteration
learning_rate  the factor on the learning rate: it follows the global batch, times what the guard leaves
schedules      schedules by number of steps that training ends far from their end
wire_choice    by which wire gradients travel
rate_guard     takes the weights back and halves the learning rate when the loss rises
loss_watch     whether the loss rises beyond its noise
"""
