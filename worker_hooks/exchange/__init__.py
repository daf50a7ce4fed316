"""The exact global gradient, and what all workers learn beside it. In reading order:

gradient_exchange  the exact global gradient: weighted buckets, summed while backward runs
trailer            the values after the gradients, from which all workers learn the same
units              what sizes are worth where losses are means over tokens
weight_samples     a few numbers that show whether weights differ
agreement          what is compared for that, and in which words workers are told
"""
