"""Training scripts in the shape of well-known public ones. Each is right or refused on several workers.

To add one, put its file here. It is found by its name, and run three times: as `python FILE`, on two workers whose
batch sizes change while they train, and in plain torch without the hook. All three must come to the same weights, to
1e-6 in float64.

A script is one that people write, with the lines that the hook needs, at most 80 lines in all:

- It trains for a second or two, on data that it makes itself with seeds.
- It has its models and optimizers at the top level of the file, under names of their own: what is compared are the
  parameters and buffers of all modules, and the rates of all optimizers, when the script ends. Averages of the weights
  count too.
- It says no types of floating-point numbers: the test switches to float64. Random numbers with a row for each sample
  may be drawn by `torch.randn`, `rand`, `randint`, their `_like` forms and dropout.
- Batch norm comes before `run.gather`, not behind it: the one process computes it over the part of each worker.
- Its first batch size is 32, and its data set has 200 samples or more.
- A script that cannot be right on several workers says so at the end of its docstring: `refused: REGEX`. Then all
  workers must stop with an error in which the expression is found, before a weight changes; one process trains it.
"""
