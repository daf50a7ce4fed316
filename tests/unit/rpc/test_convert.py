from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import WINDOW, PeerStatus, Plan, WindowRecord
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.refusals import MalformedMessageError
from tests.control_plane import record, registration


def over_the_wire(item: WindowRecord) -> WindowRecord:
    sent = convert.record_to_proto(item).SerializeToString()
    return convert.record_from_proto(item.rank, pb.WindowRecord.FromString(sent))


def same(a: WindowRecord, b: WindowRecord) -> bool:
    pairs = zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    return all(x == y or (x != x and y != y) for x, y in pairs)


def test_records_plans_registrations_and_peers_survive_the_wire() -> None:
    full = record(2, 7, retransmits_per_s=3.0, flagged=True)
    assert over_the_wire(full) == full
    assert convert.plan_from_proto(convert.plan_to_proto(Plan(3, (0, 5)))) == Plan(3, (0, 5))
    for me in (registration(1), dataclasses.replace(registration(1), work="0a")):
        assert convert.registration_from_proto(convert.registration_to_proto(me)) == me
    peer = PeerStatus(1, 20, 0.5, True)
    assert convert.peer_from_proto(convert.peer_to_proto(peer)) == peer


UNKNOWN = [
    "push_pull_s", "wait_s", "loss", "accuracy", "global_loss", "global_accuracy", "grad_sq_local", "grad_sq_global",
    "grad_norm_std", "cpu_ratio", "memory_bytes", "retransmits_per_s",
]  # fmt: skip


def test_unknown_stays_unknown_and_never_becomes_zero() -> None:
    unknown = record(0, 0, **dict.fromkeys(UNKNOWN, math.nan))
    arrived = over_the_wire(unknown)
    assert same(arrived, unknown)
    assert all(math.isnan(getattr(arrived, name)) for name in UNKNOWN)


@pytest.mark.parametrize("name", ["duration_s", "compute_s", "input_s"])
def test_nan_is_refused_where_it_cannot_be_unknown(name: str) -> None:
    message = convert.record_to_proto(record())
    message.values[name] = math.nan
    with pytest.raises(MalformedMessageError, match=rf"^{name}: got nan, expected a number of 0\.\.1e\+08$"):
        convert.record_from_proto(0, message)
    del message.values[name]
    with pytest.raises(MalformedMessageError, match=rf"^{name}: got nothing, expected a number of 0\.\.1e\+08$"):
        convert.record_from_proto(0, message)


def test_every_field_of_a_record_survives_the_wire() -> None:
    values: dict[str, Any] = {"rank": 3, "flagged": True, "network_source": "procfs"}
    numbers = [field for field in WINDOW.values() if field.is_number and field.name != "rank"]
    for index, field in enumerate(numbers, start=2):
        values[field.name] = index if field.kind is int else min(index / 64, 1.0)
    full = WindowRecord(**values)
    assert over_the_wire(full) == full


def test_values_that_this_release_does_not_know_are_ignored_and_those_it_misses_are_unknown() -> None:
    """A worker of a newer minor version, and one of an older."""
    message = convert.record_to_proto(record())
    message.values["fan_speed"] = -1.0
    del message.values["cpu_ratio"]
    arrived = convert.record_from_proto(0, message)
    assert same(arrived, record(cpu_ratio=math.nan))


def test_generated_code_runs_with_the_oldest_packages_that_setup_allows() -> None:
    """It refuses packages older than those it was made with."""
    setup = (Path(__file__).resolve().parents[3] / "setup.py").read_text()
    folder = Path(pb.__file__).parent
    for package, made_with in (
        ("protobuf", re.search(r"Protobuf Python Version: (\S+)", (folder / "arbitrator_pb2.py").read_text())),
        ("grpcio", re.search(r"GENERATED_VERSION = '(\S+)'", (folder / "arbitrator_pb2_grpc.py").read_text())),
    ):
        oldest = re.search(rf'"{package}>=([\d.]+)"', setup)
        assert made_with and oldest
        wanted, allowed = ([int(part) for part in found[1].split(".")] for found in (made_with, oldest))
        assert wanted <= [*allowed, 0, 0][:3], package


FLOATS = [field.name for field in WINDOW.values() if field.kind is float]
COUNTS = [field.name for field in WINDOW.values() if field.kind is int and field.name != "rank"]


def change(message: pb.WindowRecord, name: str, value: Any) -> None:
    if name in FLOATS:
        message.values[name] = value
    else:
        setattr(message, name, value)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308, -1e308])
def test_infinite_and_absurd_numbers_are_refused(name: str, value: float) -> None:
    message = convert.record_to_proto(record())
    change(message, name, value)
    with pytest.raises(MalformedMessageError, match=f"^{name}: got "):
        convert.record_from_proto(0, message)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 2**62])
def test_negative_and_absurd_counts_are_refused(name: str, value: int) -> None:
    message = convert.record_to_proto(record())
    change(message, name, value)
    with pytest.raises(MalformedMessageError, match=f"^{name}: got {value}, expected"):
        convert.record_from_proto(0, message)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="iterations: got 0, expected a whole number of 1"):
        convert.record_from_proto(0, pb.WindowRecord())


@given(st.data())
def test_any_record_is_either_refused_or_within_the_rules(data: st.DataObject) -> None:
    message = convert.record_to_proto(record())
    for name in data.draw(st.sets(st.sampled_from([*FLOATS, *COUNTS]), max_size=4)):
        value: Any = data.draw(st.floats() if name in FLOATS else st.integers(-(2**63), 2**63 - 1))
        change(message, name, value)
    try:
        result = convert.record_from_proto(0, message)
    except MalformedMessageError:
        return
    assert result.iterations >= 1
    assert all(getattr(result, name) >= 0 for name in COUNTS)
    assert not any(math.isinf(getattr(result, name)) for name in FLOATS)
    assert math.isfinite(result.duration_s)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_give_anything_but_a_refusal(raw: bytes) -> None:
    for kind, read in (
        (pb.RegisterRequest, convert.registration_from_proto),
        (pb.ReportRequest, lambda m: convert.record_from_proto(convert.identity_from_proto(m.identity)[0], m.record)),
        (pb.Plan, convert.plan_from_proto),
    ):
        try:
            message = kind.FromString(raw)
        except Exception:  # the wire layer's own refusal
            continue
        try:
            read(message)
        except MalformedMessageError as error:
            assert "expected" in str(error)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (pb.Plan(version=1), "got none"),
        (pb.Plan(version=-1, batch_sizes=[1]), "plan.version: got -1"),
        (pb.Plan(version=1, batch_sizes=[5, -2]), "plan.batch_sizes: got -2"),
        (pb.Plan(version=1, batch_sizes=[0, 0]), "at least one sample"),
    ],
)
def test_impossible_plans_are_refused(plan: pb.Plan, text: str) -> None:
    with pytest.raises(MalformedMessageError, match=text):
        convert.plan_from_proto(plan)


def test_names_have_a_length_limit() -> None:
    request = convert.registration_to_proto(registration())
    request.identity.incarnation = "x" * 300
    with pytest.raises(MalformedMessageError, match=r"incarnation: got 300 characters, expected 1\.\.256"):
        convert.registration_from_proto(request)
