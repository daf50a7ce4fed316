"""The learning rate over a training, and the arguments about it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.workloads import models
from benchmarks.workloads.arguments import parse_arguments
from benchmarks.workloads.schedule import FLOOR, WARM_UP, cosine, scheduled


@dataclass
class Run:
    progress: float


def test_the_cosine_rises_once_and_falls_once() -> None:
    assert cosine(0) == cosine(1) == pytest.approx(FLOOR)
    assert cosine(WARM_UP) == 1
    assert cosine(WARM_UP / 2) == pytest.approx((1 + FLOOR) / 2)
    assert cosine((1 + WARM_UP) / 2) == pytest.approx((1 + FLOOR) / 2)
    falling = [cosine(WARM_UP + step * (1 - WARM_UP) / 20) for step in range(21)]
    assert falling == sorted(falling, reverse=True)


def test_a_constant_rate_does_not_ask_how_far_training_is() -> None:
    assert scheduled("constant", 0.1, None) == 0.1  # type: ignore[arg-type]
    assert scheduled("cosine", 0.1, Run(WARM_UP)) == 0.1
    assert scheduled("cosine", 0.1, Run(1.0)) == pytest.approx(0.1 * FLOOR)


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr("sys.argv", ["train", *words])
    return parse_arguments("", "torch", models.MODELS)


def test_the_factor_is_on_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(monkeypatch, "--lr", "0.04", "--lr-factor", "0.125").lr == pytest.approx(0.005)  # type: ignore[attr-defined]
    assert parsed(monkeypatch, "--lr", "0.04").lr == 0.04  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "bpb"), "--metric bpb is of --data text, got --data fashion-mnist; use --metric loss"),
        (("--schedule", "cosine", "--epochs", "2", "--most-epochs", "3"), "--schedule cosine needs a known end"),
        (("--lr-factor", "0"), "--lr-factor must be a number above 0, got 0"),
    ],
)
def test_what_does_not_go_together_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(monkeypatch, *words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
