"""Batches that are computed in parts, in torch. In reading order:

micro_batches       a batch that does not fit is computed in parts, exactly
worker_batches      the batches of several workers in one process
running_statistics  those of batch norm, of several workers in one process
repeatable          what a repeated forward pass must find as it was
"""
