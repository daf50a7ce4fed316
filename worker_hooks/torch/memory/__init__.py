"""Batches that are computed in parts, in torch. In reading order:

micro_batches       a batch that does not fit is computed in parts, exactly
divided_batch       a call of a model in parts, forward and backward
parts_of_rows       a batch in parts whose backward pass may end before the last one, and what must hold for it
batch_rows          whether the rows that a model gets are those of the batch
single_rows         whether a model computes each row by itself
worker_batches      the batches of several workers in one process
running_statistics  those of batch norm, of several workers in one process
repeatable          what a repeated forward pass must find as it was
"""
