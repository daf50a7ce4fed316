"""The description of a message's fields, from which checks, exports, policy arrays and documentation derive.

A field is described where its dataclass declares it: `loss: Annotated[float, Metric("Mean loss", LOSS)] = NAN`. A
number with the default NaN may be unknown; one without a default is always known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

Source = Literal["plan", "hook", "machine", "kernel", "servers", "both sides"]
Scope = Literal["worker", "cluster"]

LARGEST_COUNT = 2**53  # the largest whole number that every JSON reader and every double keeps exact


class Quantity(NamedTuple):
    """A unit, and the smallest and largest possible value."""

    unit: str
    low: float
    high: float


NUMBER = Quantity("", 0, LARGEST_COUNT)
ITERATIONS = Quantity("iterations", 1, LARGEST_COUNT)
SAMPLES = Quantity("samples", 0, LARGEST_COUNT)
UNITS = Quantity("units", 0, 1e18)
WHOLE_BYTES = Quantity("bytes", 0, LARGEST_COUNT)
SECONDS = Quantity("s", 0, 1e8)
FRACTION = Quantity("", 0, 1)
RATIO = Quantity("", 0, 1e18)
DIFFERENCE = Quantity("", -1, 1)
CORES = Quantity("cores", 0, 1e18)
BYTES = Quantity("bytes", 0, 1e18)
BYTES_PER_S = Quantity("bytes/s", 0, 1e18)
SEGMENTS = Quantity("segments", 0, 1e18)
SEGMENTS_PER_S = Quantity("segments/s", 0, 1e18)
PASSES = Quantity("passes", 0, 1e18)
LOSS = Quantity("", -1e30, 1e30)
SQUARED_NORM = Quantity("", 0, 1e30)
NOISE = Quantity("", -1e30, 1e30)  # unbiased estimates of squared norms can be negative
RELATIVE_SPREAD = Quantity("", 0, 1e30)
WORD = Quantity("word", 0, 0)
YES_OR_NO = Quantity("yes or no", 0, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """Description of one field.

    Attributes:
        source: what measures it.
        scope: "cluster" if it has the same value on every worker.
        gauge: name of its Prometheus gauge without prefix; empty: no gauge.
        total: name of the Prometheus counter of its sum over windows; a rate is multiplied by the window's length.
        chart: whether it is written to TensorBoard.
    """

    meaning: str
    quantity: Quantity
    source: Source = "hook"
    scope: Scope = "worker"
    gauge: str = ""
    total: str = ""
    chart: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One described field of a message. Only numbers can be unknown."""

    name: str
    kind: type  # int, float, bool or str
    may_be_unknown: bool
    metric: Metric

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float)


FieldTable = Mapping[str, Field]


def table_of(message: type, *shared: FieldTable) -> FieldTable:
    """The described fields of a dataclass by name, in the order of the dataclass.

    Args:
        shared: tables that describe the fields which `message` has in common with other messages.

    Raises:
        TypeError: a number has no description.
    """
    table = {}
    hints = get_type_hints(message, include_extras=True)
    for declared in dataclasses.fields(message):
        kind, metric = _described(hints[declared.name])
        if metric is None:
            metric = next((other[declared.name].metric for other in shared if declared.name in other), None)
        if metric is not None:
            # NaN is the only default that is not equal to itself
            unknown = kind is float and declared.default != declared.default
            table[declared.name] = Field(declared.name, kind, unknown, metric)
        elif kind in (int, float):
            raise TypeError(f"{message.__name__}.{declared.name}: no Metric describes it; add Annotated[..., Metric()]")
    return table


def _described(hint: Any) -> tuple[type, Metric | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *notes = get_args(hint)
    return kind, next((note for note in notes if isinstance(note, Metric)), None)
