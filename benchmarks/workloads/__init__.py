"""Trainings of the benchmarks: data sets, models, and training scripts. In reading order:

train             the script of torch workloads
train_mxnet       the script of MXNet workloads
plain_byteps      the same training without the hook
tiny_regression   a training of seconds, for the study of faults
frameworks        scripts in Lightning, accelerate and transformers

What they share
arguments         their command line
data              data sets by name
download          where they come from
formats           how files of data sets are read
torch_images      images for torch
mxnet_images      images for MXNet
models            models by name
mxnet_models      models for MXNet
goal              decides when a training ends
"""
