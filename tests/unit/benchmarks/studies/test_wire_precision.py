"""What the study of fewer bytes on the wire computes, and that it goes on where it stopped."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks.studies import wire_precision
from benchmarks.studies.wire_precision import WIRES, Task, differences, in_steps, in_words, rounded, sgd, summed
from dynamix_ps.errors import UsageError

TOY = {"digits": Task("digits", "mlp", sgd, 0.05, 48, 2)}


def test_rounding_goes_to_the_nearest_and_ties_to_even() -> None:
    step = 2**-7  # between neighbours above 1
    values = torch.tensor([1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.51 * step, -1 - 0.49 * step])
    assert rounded(values).tolist() == [1, 1 + 2 * step, 1 + step, -1]


def test_int8_rounds_to_steps_of_each_block() -> None:
    values = torch.cat(
        [torch.linspace(-127, 127, 255), torch.tensor([0.4]), torch.tensor([0.127, 0.0004, 0.0006, -0.127])]
    )
    expected = torch.cat([torch.linspace(-127, 127, 255), torch.tensor([0.0]), torch.tensor([0.127, 0, 0.001, -0.127])])
    torch.testing.assert_close(in_steps(values), expected)
    assert not in_steps(torch.zeros(2, 300)).any()


def test_bf16_sums_in_float32_and_rounds_the_answer() -> None:
    parts = torch.tensor([[256.0], [1.0], [1.0], [0.001]])
    assert WIRES["bf16"]()(parts).item() == 258  # in bf16, 256 + 1 would stay 256
    assert summed(parts).item() == pytest.approx(258.001)


def test_feedback_sends_later_what_rounding_has_left_out() -> None:
    gradient = torch.tensor([[1 + 2**-9]])
    exchange = WIRES["bf16"]()
    assert sum(exchange(gradient).item() for _ in range(400)) == pytest.approx(400 * (1 + 2**-9), abs=2**-7)
    assert rounded(gradient).item() == 1  # for ever


def test_servers_send_later_what_rounding_their_sums_has_left_out() -> None:
    exchange, gradients = WIRES["int8"](), torch.tensor([[1.0, 0.0], [0.0, 0.3], [0.0, 0.001]])
    total = sum((exchange(gradients) for _ in range(400)), torch.zeros(2))
    assert (total - 400 * gradients.sum(0)).abs().max() < 0.02


def test_differences_are_paired() -> None:
    losses = {("float32", 1): 1.0, ("float32", 2): 10.0, ("int8", 2): 12.0, ("int8", 1): 2.0, ("int8", 3): 7.0}
    found = {("digits", wire, seed): {"loss": str(loss)} for (wire, seed), loss in losses.items()}
    assert differences(found, "digits", "int8", "loss") == {1: 1.0, 2: 2.0}


def test_a_mean_has_students_interval_and_the_scatter() -> None:
    assert in_words({1: 1.0, 2: 2.0, 3: 3.0}, 2) == "+2.00 [-0.48, +4.48] (2.16)"
    assert in_words({1: 1.0}, 2) == ""


def test_a_second_call_trains_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--out", str(tmp_path), "--seeds", "2"]
    wire_precision.main([*arguments, "--limit-s", "0"], TOY)
    assert "8 trainings are left" in capsys.readouterr().out
    wire_precision.main(arguments, TOY)
    first = (tmp_path / "wire-precision.csv").read_text()
    assert capsys.readouterr().out.count("digits, bf16, seed") == 2
    wire_precision.main(arguments, TOY)
    assert "all trainings are done" in capsys.readouterr().out
    assert (tmp_path / "wire-precision.csv").read_text() == first
    rows = list(csv.DictReader(first.splitlines()))
    assert len(rows) == 2 * len(WIRES)
    errors = {row["wire"]: float(row["error"]) for row in rows}
    assert errors["float32"] < 1e-6 < 1e-4 < errors["bf16"] < 1e-2
    page = (tmp_path / "wire-precision.md").read_text()
    assert "| digits | int8 | 2 |" in page


def test_trainings_of_another_length_are_refused(tmp_path: Path) -> None:
    wire_precision.main(["--out", str(tmp_path), "--seeds", "1"], TOY)
    longer = {"digits": Task("digits", "mlp", sgd, 0.05, 48, 3)}
    with pytest.raises(UsageError, match=r"wire-precision\.csv:2: got digits with 384 samples.* with 576; delete"):
        wire_precision.main(["--out", str(tmp_path)], longer)
