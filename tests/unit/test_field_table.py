"""Each field is described once, and everything derived from the description agrees with it."""

from dataclasses import dataclass, fields
from typing import Annotated

import pytest

from dynamix_ps.field_table import FRACTION, NUMBER, SECONDS, Metric, table_of
from dynamix_ps.messages import NAN, NETWORK, SYSTEM, WINDOW, NetworkSample, SystemSample, WindowRecord
from dynamix_ps.policy.window_arrays import OF_CLUSTER, OF_LINK, OF_RECORD


@dataclass
class Part:
    busy: Annotated[float, Metric("Time in use", FRACTION, "kernel")] = NAN


@dataclass(kw_only=True)
class Whole:
    name: str
    shots: Annotated[int, Metric("Shots", NUMBER)]
    took_s: Annotated[float, Metric("Time taken", SECONDS)]
    idle_s: Annotated[float, Metric("Time not used", SECONDS)] = NAN
    busy: float = NAN


def test_a_table_has_the_described_fields_in_order() -> None:
    table = table_of(Whole, table_of(Part))
    assert list(table) == ["shots", "took_s", "idle_s", "busy"]
    assert [field.may_be_unknown for field in table.values()] == [False, False, True, True]
    assert [field.kind for field in table.values()] == [int, float, float, float]
    assert table["busy"].metric is table_of(Part)["busy"].metric


def test_a_number_that_nothing_describes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Whole\.busy: no Metric describes it"):
        table_of(Whole)


def test_every_field_of_a_window_is_described() -> None:
    assert list(WINDOW) == [field.name for field in fields(WindowRecord)]
    assert all(field.metric.meaning and field.metric.quantity for field in WINDOW.values())


@pytest.mark.parametrize(("part", "table"), [(SystemSample, SYSTEM), (NetworkSample, NETWORK)])
def test_a_window_holds_all_that_machine_and_kernel_measure(part: type, table: dict[str, object]) -> None:
    names = {field.name for field in fields(part)}
    assert names == set(table)
    assert names <= set(WINDOW)


def test_policies_get_the_fields_that_their_arrays_name() -> None:
    assert {"samples", "compute_s", "loss", "cpu_ratio", "rtt_s", "push_busy"} <= set(OF_RECORD)
    assert {"iterations", "duration_s", "global_loss", "noise_variance", "lr_ratio"} <= set(OF_CLUSTER)
    assert OF_LINK == ("pull_retransmits_per_s", "pull_busy", "push_difference")
    assert not set(OF_RECORD) & set(OF_CLUSTER)
