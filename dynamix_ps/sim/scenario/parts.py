"""The sections of a scenario file. Names and units are those of Parameters, which explains each quantity."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

logger = logging.getLogger(__name__)

NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Part = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
What = Literal["compute", "bandwidth", "loss", "latency", "server"]

# Typical shapes of training; a scenario may change single values. Orders of magnitude of the noise scales from
# arXiv 1812.06162 (figure 4); the rest is chosen by us.
PROFILES: dict[str, dict[str, float | str]] = {
    "cnn": {},
    "transformer": {
        "noise_scale": 1500.0,
        "noise_growth": 1.0,
        "decay": 0.7,
        "progress_scale": 120.0,
        "first_loss": 9.2,
        "last_loss": 1.7,
        "chance": 0.0001,
        "best_accuracy": 0.6,
        "gap": 0.005,
        "directions": 60.0,
        "data_samples": 500_000.0,
    },
}


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Tiles(Section):
    """Time over batch size as a staircase (cluster/effects/tiles.py)."""

    samples: Annotated[int, Field(ge=2)]  # computed at once
    part: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the time per sample that comes in whole tiles


class Cliff(Section):
    """A batch beyond which the slope grows (cluster/effects/cliffs.py)."""

    above_samples: Positive
    slope: Annotated[float, Field(gt=1)]  # how many times as long each further sample takes


class Heat(Section):
    """Slower after sustained load (cluster/effects/heat.py)."""

    slow_down: Annotated[float, Field(gt=1)]  # how many times as long a hot machine computes under full load
    time_constant_s: Positive = 28.0
    sustained_load: Annotated[float, Field(ge=0, lt=1)] = 0.6  # above it, it becomes slower


class SimulatedWorker(Section):
    """One worker, or `count` of them alike."""

    count: Count = 1
    fixed_s: NotNegative = 0.01
    per_sample_s: Positive = 2e-4
    memory_limit: Positive = 16384.0
    quota: Annotated[float, Field(gt=0, le=1)] = 1.0
    bytes_per_s: Positive = 1.25e9
    latency_s: Positive = 5e-4
    loss: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    initial: Count | None = None  # none: the scenario's `initial_batch`
    tiles: Tiles | None = None
    cliff: Cliff | None = None
    heat: Heat | None = None
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)] | None = None  # none: its own


class Servers(Section):
    """Servers on hosts of their own, and one on every worker's host where `beside_workers` says so.

    Those beside workers share that worker's link and take the part of the bytes that `server_shares` of the data plane
    gives them by the links of the scenario.
    """

    count: Annotated[int, Field(ge=0)] = 2
    bytes_per_s: Positive = 2.5e9  # each
    beside_workers: bool = False

    @model_validator(mode="after")
    def _some(self) -> Servers:
        if not self.count and not self.beside_workers:
            raise ValueError("there must be a server; count may be 0 where beside_workers is true")
        return self


class Bounds(Section):
    min: Annotated[int, Field(ge=0)] = 8
    max: Count = 4096


class TrainingModel(Section):
    """The training model (learning.py). `profile` gives the values that the file leaves out."""

    profile: Literal["cnn", "transformer"] = "cnn"
    tuning: Annotated[float, Field(gt=0, le=2)] = 0.7
    noise_scale: Positive = 200.0
    noise_growth: NotNegative = 1.3
    progress_scale: Positive = 250.0
    decay: Positive = 1.0
    accuracy_power: Positive = 1.0
    first_loss: Positive = 2.3
    last_loss: NotNegative = 0.05
    chance: Part = 0.1
    best_accuracy: Annotated[float, Field(gt=0, le=1)] = 0.95
    gap: Annotated[float, Field(ge=0, lt=1)] = 0.015
    gap_batch: Positive = 1500.0
    gradient_sq: Positive = 1.0
    directions: Positive = 60.0
    data_samples: Positive = 50_000.0

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if "workload" in given:
            logger.warning(
                "training.workload: every scenario trains by the same model; the key changes nothing, remove it"
            )
        rest = {name: value for name, value in given.items() if name != "workload"}
        return {**PROFILES.get(rest.get("profile", ""), {}), **rest}


class Event(Section):
    """A change at a given time or epoch, or one that comes back with a period."""

    at_s: NotNegative | None = None
    at_epoch: NotNegative | None = None
    until_s: Positive | None = None  # none: to the end
    until_epoch: Positive | None = None
    every_s: Positive | None = None  # comes back so long after each begin; none: once
    what: What
    workers: tuple[Annotated[int, Field(ge=0)], ...] | None = None  # none: all
    value: NotNegative | tuple[NotNegative, ...]  # a factor, for loss an addend; several values: one per worker

    @model_validator(mode="after")
    def _one_clock(self) -> Event:
        if (self.at_s is None) == (self.at_epoch is None):
            raise ValueError("needs either at_s or at_epoch")
        if (self.until_epoch if self.at_epoch is None else self.until_s) is not None:
            raise ValueError("needs one unit for begin and end: at_s with until_s, or at_epoch with until_epoch")
        return self

    @model_validator(mode="after")
    def _ends_before_it_comes_back(self) -> Event:
        if self.every_s is None:
            return self
        if self.at_s is None or self.until_s is None:
            raise ValueError("every_s needs at_s and until_s, the first time that it happens")
        if not 0 < self.until_s - self.at_s < self.every_s:
            raise ValueError(f"lasts {self.until_s - self.at_s:g} s, expected more than 0 and less than every_s")
        return self


class Burst(Section):
    """A change that begins and ends at random, independently on each of its workers."""

    what: Literal["compute", "bandwidth", "loss"]
    every_s: Positive  # mean time between two
    for_s: Positive  # mean length
    workers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    value: NotNegative
