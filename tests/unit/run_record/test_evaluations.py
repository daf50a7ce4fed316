import math

import pytest

from dynamix_ps.run_record.evaluations import Evaluation, curves, evaluation_of, higher_is_better, main_names, shown


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", True), ("top5_accuracy", True), ("F1", True), ("val/auc", True), ("loss", False),
        ("test_loss", False), ("mean absolute error", False), ("MAE", False), ("wer", None), ("loss_scale", None),
        ("value", None), ("", None),
    ],
)  # fmt: skip
def test_directions_by_name(name: str, expected: bool | None) -> None:
    assert higher_is_better(name) is expected


def test_curves_have_accuracy_first_and_rank_only_what_has_a_direction() -> None:
    directions = {"mae": False, "accuracy": True}
    points = [
        Evaluation(10, 0, 1.0, {"mae": 2.0, "gap": 1.0}, directions),
        Evaluation(20, 0, 2.0, {"mae": 1.0, "gap": 2.0, "accuracy": 0.5}, directions),
        Evaluation(30, 0, 3.0, {"mae": math.nan, "accuracy": 0.4}, directions),
    ]
    found = curves(points)
    assert list(found) == ["accuracy", "mae", "gap"]
    assert (found["accuracy"].best, found["accuracy"].last) == (0.5, 0.4)
    assert found["mae"].best == 1.0
    assert math.isnan(found["mae"].last)
    assert math.isnan(found["gap"].best)
    assert found["gap"].elapsed_s == [1.0, 2.0]


def test_lines_of_today_and_of_before() -> None:
    line = {"iteration": 5, "epoch": 1, "time_s": 12.0}
    new = evaluation_of(line | {"values": {"mae": None}, "higher_is_better": {"mae": False}}, 10.0)
    assert math.isnan(new.values["mae"]) and math.isnan(new.accuracy)
    old = evaluation_of(line | {"accuracy": 0.5, "loss": 1.0}, 10.0)
    assert (old.accuracy, old.elapsed_s, old.directions) == (0.5, 2.0, {"accuracy": True, "loss": False})
    with pytest.raises(KeyError):
        evaluation_of(line, 10.0)


def test_values_for_people() -> None:
    assert [shown("accuracy", 0.5), shown("mae", 0.0505), shown("mse", 12345.6), shown("mae", None)] == [
        "50.00 %",
        "0.0505",
        "1.235e+04",
        "-",
    ]
    assert main_names(["mae", "accuracy"]) == ["accuracy"]
    assert main_names(["averaged_loss", "averaged_accuracy", "accuracy"]) == ["accuracy", "averaged_accuracy"]
    assert main_names("abcd") == ["a", "b", "c"]
