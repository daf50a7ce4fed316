"""What a loss tells of itself, in torch. In reading order:

loss_graph     whether a loss is a mean over samples, as far as its graph shows
batch_values   values of the whole batch in a loss, with which it is none
graph_nodes    what nodes of a graph are, and what they have kept
gathered_rows  run.gather: the rows of all workers, through which a loss has its gradient
batch_of_loss  which batch a loss is of, by what its graph has kept
"""
