"""What is trained in a cell: data, model, optimizer and how far, from workloads.yaml beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.workloads import data, models
from benchmarks.workloads.arguments import DATA_SETS, OPTIMIZERS, Framework
from benchmarks.workloads.goal import MetricName
from benchmarks.workloads.schedule import ScheduleName
from dynamix_ps.config.schema import DataPlaneName, Unit
from dynamix_ps.config.validate import BrokenRule, load_model
from dynamix_ps.data_planes import planes_for
from dynamix_ps.errors import ConfigError
from dynamix_ps.run_record.evaluations import higher_is_better

FILE = Path(__file__).with_name("workloads.yaml")

MXNET_MODELS = ("cnn", "mlp")  # models that are there in both frameworks
_SCRIPTS = {"torch": "benchmarks.workloads.train", "mxnet": "benchmarks.workloads.train_mxnet"}

Positive = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0)]
Precision = Literal["bf16"]
Optimizer = Literal["sgd", "adam", "adamw"]  # sgd with momentum 0.9
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._]*(-[A-Za-z0-9._]+)*$", max_length=64)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Workload(_Section):
    """`lr` has a learning rate for each optimizer that was tried, and the training uses that of `optimizer`. It belongs
    to the global batch of the first sizes; `lr_rule` says how it follows another one.

    Training ends after `epochs`, the same samples for every contender, or at `limit_s`. One that has not reached the
    target by then goes on until it does, up to `most_epochs`.
    """

    about: str
    framework: Framework = "torch"
    comm: DataPlaneName = "byteps"
    data: Literal["fashion-mnist", "cifar-10", "digits", "text"]
    train_samples: Count  # one epoch
    model: str
    optimizer: Optimizer
    lr: dict[Optimizer, Positive]
    schedule: ScheduleName = "constant"  # of the rate over the training
    autocast: Precision | None = None  # mixed precision; none: float32
    lr_rule: Literal["none", "linear", "sqrt", "adascale"]
    epochs: Count
    most_epochs: Count | None = None  # none: no more than `epochs`
    ema_decay: Decay | None = None  # of averaged weights, which are then what is judged; none: the weights themselves
    eval_samples: Count  # of all workers between evaluations, so that large and small batches pay for as many
    unit: Unit = "samples"  # of batch, min and max
    batch: Count  # first size of every worker
    min: Count
    max: Count
    window: Count  # iterations per decision
    test_samples: Count | None = None  # the first of them, on which is evaluated; none: all
    metric: MetricName = "accuracy"  # on the test data
    thresholds: Annotated[tuple[Positive, ...], Field(min_length=1)]  # of the metric; the last is the target
    limit_s: Positive  # of training

    @property
    def command(self) -> tuple[str, ...]:
        """What each worker runs; only the seed is missing."""
        return ("python", "-m", _SCRIPTS[self.framework], *self.options)

    @property
    def options(self) -> tuple[str, ...]:
        """Of the script, in words."""
        options = {
            "--data": self.data,
            "--model": self.model,
            "--epochs": self.epochs,
            "--most-epochs": self.most_epochs or self.epochs,
            "--metric": self.metric,
            "--target": self.thresholds[-1],
            "--optimizer": self.optimizer,
            "--lr": self.lr[self.optimizer],
            "--schedule": self.schedule,
            "--eval-samples": self.eval_samples,
            **({} if self.autocast is None else {"--autocast": self.autocast}),
            **({} if self.ema_decay is None else {"--ema-decay": self.ema_decay}),
            **({} if self.test_samples is None else {"--test-samples": self.test_samples}),
        }
        return tuple(str(word) for pair in options.items() for word in pair)

    @property
    def no_ddp(self) -> str:
        """Why the contenders over DDP cannot train this; empty where they can."""
        if self.framework != "torch":
            return f"is of {self.framework}"
        if self.ema_decay is not None:
            return "averages weights"
        return "" if self.unit == "samples" else f"has sizes in {self.unit}"

    def with_optimizer(self, optimizer: Optimizer) -> Workload:
        """The same with another optimizer, at its own rate. Raises ConfigError where no rate is known for it."""
        if optimizer not in self.lr:
            raise ConfigError(
                f"no learning rate of {optimizer} is known for {self.about}; there are {', '.join(self.lr)}"
            )
        return self.model_copy(update={"optimizer": optimizer})


class _File(_Section):
    workloads: dict[Name, Workload]


def load_workloads(file: Path = FILE) -> dict[str, Workload]:
    """All of them by name. Raises ConfigError with one line per error in the file."""
    return load_model(file, _File, _findings).workloads


def load_workload(name: str) -> Workload:
    """One of those that ship. Raises ConfigError."""
    known = load_workloads()
    if name not in known:
        raise ConfigError(f"no workload {name!r}; there are {', '.join(known)}")
    return known[name]


def _findings(file: _File) -> Iterator[BrokenRule]:
    for name, one in file.workloads.items():
        for key, message, *uses in _broken(one):
            got = getattr(one, key)
            where = ("workloads", name)
            yield BrokenRule((*where, key), message, got, tuple((*where, other) for other in uses))


def _broken(one: Workload) -> Iterator[tuple[str, ...]]:
    """A key, what is wrong with it, and the other keys that this is about."""
    yield from _of_no_framework(one)
    if one.optimizer not in one.lr:
        yield "lr", f"must have a rate of {one.optimizer}", "optimizer"
    if one.schedule == "cosine" and one.most_epochs not in (None, one.epochs):
        yield "schedule", "must be constant where the end is not known; remove most_epochs", "most_epochs"
    if one.unit != "samples" and one.data != data.TEXT:
        yield "unit", f"must be samples for {one.data}; tokens are of a text", "data"
    if not one.min <= one.batch <= one.max:
        yield "batch", f"must lie within {one.min}..{one.max}", "min", "max"
    if (one.most_epochs or one.epochs) < one.epochs:
        yield "most_epochs", f"must be {one.epochs}, the epochs of every training, or more", "epochs"
    if one.metric == "bpb" and one.data != data.TEXT:
        yield "metric", f"must be accuracy or loss for {one.data}; bits per byte are of a text", "data"
    if one.metric == "accuracy" and max(one.thresholds) >= 1:
        yield "thresholds", "must be accuracies below 1", "metric"
    grow = bool(higher_is_better(one.metric))
    if list(one.thresholds) != sorted(set(one.thresholds), reverse=not grow):
        yield "thresholds", f"must {'grow' if grow else 'fall'} from one to the next", "metric"
    samples = one.epochs * one.train_samples
    if one.eval_samples > samples:
        yield "eval_samples", f"must not exceed the {samples} samples of the training", "epochs", "train_samples"


def _of_no_framework(one: Workload) -> Iterator[tuple[str, ...]]:
    """What the framework of the workload does not have."""
    known = MXNET_MODELS if one.framework == "mxnet" else tuple(sorted(models.MODELS))
    if one.model not in known:
        yield "model", f"must be one of {', '.join(known)}", "framework"
    for key, choices in (("data", DATA_SETS[one.framework]), ("optimizer", OPTIMIZERS[one.framework])):
        if getattr(one, key) not in choices:
            yield key, f"must be one of {', '.join(choices)} for {one.framework}", "framework"
    if one.comm not in planes_for(one.framework):
        yield "comm", f"must be {' or '.join(planes_for(one.framework))} for {one.framework}", "framework"
    if one.framework != "torch":
        if one.ema_decay is not None:
            yield "ema_decay", "must be left out: averaged weights are torch's", "framework"
        if one.autocast is not None:
            yield "autocast", "must be left out: mixed precision is torch's", "framework"
