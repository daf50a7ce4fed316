"""A simulated cluster and its training as a file: YAML in, Scenario out, and back.

`parameters_of` in sim/cluster/parameters.py joins scenarios to the arrays that the simulator uses. The scenarios that
ship are in sim/scenarios/. `Scenario` and scenario/parts.py list the keys.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from dynamix_ps.config.yaml_lines import Dumper, read_yaml
from dynamix_ps.errors import ConfigError
from dynamix_ps.sim.scenario.parts import (
    Bounds,
    Burst,
    Count,
    Event,
    NotNegative,
    Part,
    Positive,
    Section,
    Servers,
    SimulatedWorker,
    TrainingModel,
)

_SHIPPED = Path(__file__).parents[1] / "scenarios"


class Scenario(Section):
    """Everything about one simulated run except its random numbers."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
    about: str = ""
    workers: Annotated[tuple[SimulatedWorker, ...], Field(min_length=1)] = (SimulatedWorker(count=8),)
    servers: Servers = Servers()
    architecture: Literal["ps", "ring"] = "ps"
    model_bytes: Positive = 2e7
    overlap: Part = 0.5
    warm_up: Annotated[float, Field(ge=1)] = 1.0
    jitter: NotNegative = 0.03
    drift: NotNegative = 0.0
    drift_s: Positive = 60.0
    contention: NotNegative = 0.0  # by what part one computing worker slows the others of its host down
    gpu: bool = False
    cores: Positive = 4.0
    sees_network: bool = True  # whether workers and servers report their connections
    batch: Bounds = Bounds()
    initial_batch: Count = 32  # of workers without an own value
    window: Count = 20
    lr_rule: Literal["none", "linear", "sqrt", "adascale"] = "adascale"
    training: TrainingModel = TrainingModel()
    target_accuracy: Annotated[float, Field(gt=0, le=1)] = 0.84
    max_windows: Count = 1500
    trace: tuple[Event, ...] = ()  # a file may name a CSV file in its folder instead
    bursts: tuple[Burst, ...] = ()

    @property
    def constant(self) -> bool:
        """Whether the cluster never changes: no events, no bursts, no drift, no heat."""
        return not (self.trace or self.bursts or self.drift or any(worker.heat for worker in self.workers))

    @property
    def n_workers(self) -> int:
        return sum(worker.count for worker in self.workers)

    @property
    def each_worker(self) -> tuple[SimulatedWorker, ...]:
        """Every worker by rank; `count` is 1."""
        return tuple(w.model_copy(update={"count": 1}) for w in self.workers for _ in range(w.count))

    @property
    def initial_sizes(self) -> tuple[int, ...]:
        return tuple(self.initial_batch if w.initial is None else w.initial for w in self.each_worker)

    @model_validator(mode="after")
    def _fits_together(self) -> Scenario:
        n = self.n_workers
        changes: tuple[Event | Burst, ...] = (*self.trace, *self.bursts)
        for change in changes:
            concerned = range(n) if change.workers is None else change.workers
            if any(rank >= n for rank in concerned):
                raise ValueError(f"{change.what}: workers {list(concerned)}, there are only 0 to {n - 1}")
            if isinstance(change.value, tuple) and len(change.value) != len(concerned):
                raise ValueError(f"{change.what}: {len(change.value)} values for {len(concerned)} workers")
        for size in self.initial_sizes:
            if not self.batch.min <= size <= self.batch.max:
                raise ValueError(f"initial size {size} is outside the bounds {self.batch.min} to {self.batch.max}")
        if self.contention and not any(worker.host for worker in self.workers):
            raise ValueError("contention slows workers of one host down, but no worker has the key host; name hosts")
        if not self.training.chance < self.target_accuracy < self.training.best_accuracy:
            raise ValueError("target_accuracy must lie between training.chance and training.best_accuracy")
        return self

    def with_workers(self, n: int) -> Scenario:
        """The same cluster at another size.

        Worker i of n is like worker i * before // n. What all workers share (servers, noise scale, data) grows with
        their number, so that every worker has as much work as before (weak scaling, chosen by us). So does the number
        of hosts, so that as many workers share one.
        """
        before, each, training = self.n_workers, self.each_worker, self.training
        like = [rank * before // n for rank in range(n)]
        grown: dict[str, Any] = {
            name: getattr(training, name) * n / before for name in ("noise_scale", "gap_batch", "data_samples")
        }
        return self.model_copy(
            update={
                "workers": _on_more_hosts([each[rank] for rank in like], like),
                "servers": self.servers.model_copy(update={"bytes_per_s": self.servers.bytes_per_s * n / before}),
                "training": training.model_copy(update=grown),
                "trace": _moved(self.trace, like, before),
                "bursts": _moved(self.bursts, like, before),
            }
        )


def _on_more_hosts(workers: list[SimulatedWorker], like: list[int]) -> tuple[SimulatedWorker, ...]:
    """The workers, with the second of those that are like one worker on a second host like its host, and so on."""
    result = []
    for rank, worker in enumerate(workers):
        copy = rank - like.index(like[rank])
        result.append(worker.model_copy(update={"host": f"{worker.host}.{copy}"}) if worker.host and copy else worker)
    return tuple(result)


def _moved(changes: tuple[Any, ...], like: list[int], before: int) -> tuple[Any, ...]:
    """Changes of `before` workers, for the workers that are `like` them; changes without a worker are dropped."""
    result = []
    for change in changes:
        concerned = tuple(range(before)) if change.workers is None else change.workers
        ranks = tuple(rank for rank, old in enumerate(like) if old in concerned)
        value = change.value
        if isinstance(value, tuple):
            value = tuple(value[concerned.index(like[rank])] for rank in ranks)
        if ranks:
            result.append(change.model_copy(update={"workers": ranks, "value": value}))
    return tuple(result)


def shipped() -> tuple[str, ...]:
    """Names of the scenarios in the package."""
    return tuple(sorted(file.stem for file in _SHIPPED.glob("*.yaml")))


def load_scenario(name_or_path: str | Path) -> Scenario:
    """A scenario that ships, by its name, or a scenario file.

    Raises:
        ConfigError: no such scenario, or one line per error: FILE:LINE: key: what is wrong.
    """
    inside = _SHIPPED / f"{name_or_path}.yaml"
    file = inside if str(name_or_path) in shipped() else Path(name_or_path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"scenario {name_or_path}: not one of {', '.join(shipped())}, and as a file it cannot be read: {error}"
        ) from error
    document = read_yaml(text)
    if document.problems:
        raise ConfigError("\n".join(f"{file}:{one.line}: {one.message}" for one in document.problems))
    data = document.data
    if isinstance(data, dict) and isinstance(data.get("trace"), str):
        data = {**data, "trace": _read_csv(file.parent / data["trace"])}
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            key = ".".join(map(str, item["loc"])) or "scenario"
            lines.append(f"{file}:{document.line(tuple(item['loc']))}: {key}: {item['msg']}")
        raise ConfigError("\n".join(lines)) from error


def _read_csv(file: Path) -> tuple[dict[str, Any], ...]:
    """Events, one per line. Columns are the keys of an event; empty cells are left out; `0 2 5` lists workers."""
    events = []
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                event: dict[str, Any] = {key: cell for key, cell in row.items() if cell}
                if "workers" in event:
                    event["workers"] = tuple(int(rank) for rank in event["workers"].split())
                for key in event.keys() - {"what", "workers"}:
                    event[key] = float(event[key])
                events.append(event)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as a trace: {error}") from error
    return tuple(events)


def dump_scenario(scenario: Scenario) -> str:
    """YAML text that `load_scenario` reads as an equal scenario, without values that equal their defaults.

    But for `model_bytes`: where it is named, it counts in a rehearsal, and else the real size of the model does.
    """
    data = scenario.model_dump(mode="json", exclude_defaults=True)
    if "model_bytes" in scenario.model_fields_set:
        data["model_bytes"] = scenario.model_bytes
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, width=120)
