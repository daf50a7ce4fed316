"""Training scripts in the shape of well-known public ones. Each is right or refused on several workers.

To add one, put its file here; the test finds it. The script runs as `python FILE` does, and on two workers whose batch
sizes change while they train. Each time plain torch, without the hook, trains on the same batches, and must come to the
same weights, to 1e-6 in float64.

A script is one that people write, with the lines that the hook needs, at most 80 lines in all:

- It trains for a second or two, on data that it makes itself with seeds.
- It has its models and optimizers at the top level of the file, under names of their own: what is compared are the
  parameters and buffers of all modules, and the rates of all optimizers, when the script ends. Averages of the weights
  count too.
- It says no types of floating-point numbers: the test switches to float64. Random numbers with a row for each sample
  may be drawn by `torch.randn`, `rand`, `randint`, `randn_like`, `rand_like` and dropout.
- Batch norm goes over the part of each worker, as in every training here, and plain torch does the same in the test.
  So batch norm comes before `run.gather`, not behind it.
- Its first batch size is 32, and its data set has 200 samples or more.
- A script that cannot be right on several workers says so at the end of its docstring: `refused: REGEX`. Then all
  workers must stop with an error in which the expression is found, before a weight changes; one process trains it.
"""
