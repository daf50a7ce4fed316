"""Trainings of the benchmarks: data sets, models, and training scripts. In reading order:

train             the script of torch workloads
train_mxnet       the script of MXNet workloads
train_ddp         the same over torch's DistributedDataParallel, without the hook
plain_byteps      a training on BytePS without the hook
tiny_regression   a training of seconds, for the study of faults
frameworks        scripts in Lightning, accelerate and transformers

What they share
arguments         their command line
data              data sets by name
data_set          what a data set is
download          where images come from
formats           how files of images are read
text              a text, from Python's standard library or a file
torch_samples     samples for torch
mxnet_images      images for MXNet
models            models by name
transformers      two of them
mxnet_models      models for MXNet
optimizers        optimizers of torch by name
objective         what torch workloads minimise and report
schedule          the learning rate over a training
goal              decides when a training ends
"""
