"""One rate of a race, around the steps of a plain training in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.rehearsal.rate_race import AVERAGED_FROM, JUDGED, TRAINED
from dynamix_ps.rehearsal.rate_trial import EVENT, RateTrial
from dynamix_ps.rehearsal.session import RehearsedSession

Make = Callable[[Any, float], torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "momentum": lambda weights, lr: torch.optim.SGD(weights, lr, momentum=0.9, weight_decay=0.1),
    "adamw": lambda weights, lr: torch.optim.AdamW(weights, lr, weight_decay=0.1),
}


class Script:
    """A training loop with a schedule. `weights`: after each iteration."""

    def __init__(self, make: Make, lr: float, optimizers: int = 1) -> None:
        torch.manual_seed(0)
        self.iteration = 0
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        parts = list(self.model.parameters())
        self.optimizers = [make(parts[one::optimizers], lr) for one in range(optimizers)]
        self.schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.99) for one in self.optimizers]
        self.weights: list[torch.Tensor] = []
        self.told: list[dict[str, Any]] = []
        self.ended_in: list[int] = []

    def train(self, iterations: int = TRAINED + 1 + JUDGED) -> Script:
        for number in range(iterations):
            self.iteration = number
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
            self.model.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), (inputs.sum(1) > 0).long()).backward()
            for one in (*self.optimizers, *self.schedules):
                one.step()
            self.weights.append(nn.utils.parameters_to_vector(self.model.parameters()).detach().clone())
        return self


@pytest.fixture
def race() -> Iterator[Callable[[Script, float], Script]]:
    handles: list[Any] = []

    def enter(script: Script, factor: float) -> Script:
        trial = RateTrial(
            factor,
            lambda: script.iteration,
            lambda kind, **told: script.told.append({kind: told}),
            lambda: script.ended_in.append(script.iteration),
        )
        handles.extend(trial.install())
        return script

    yield enter
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("name", MAKERS)
def test_a_trial_trains_as_with_that_rate_and_ends_at_the_average(
    race: Callable[[Script, float], Script], name: str, optimizers: int
) -> None:
    plain = Script(MAKERS[name], 0.5 * 0.25, optimizers).train()
    tried = race(Script(MAKERS[name], 0.5, optimizers), 0.25).train()
    for iteration in range(TRAINED):
        assert torch.equal(tried.weights[iteration], plain.weights[iteration]), iteration
    average = torch.stack(plain.weights[AVERAGED_FROM:TRAINED]).mean(0)
    for judged in tried.weights[TRAINED:]:
        torch.testing.assert_close(judged, average)
        assert torch.equal(judged, tried.weights[TRAINED]), "the rate is 0"


def test_the_script_sees_its_own_rate_alone(race: Callable[[Script, float], Script]) -> None:
    script = race(Script(MAKERS["momentum"], 0.5), 8.0).train()
    assert script.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 * 0.99 ** (TRAINED + 1 + JUDGED))
    at_the_end = pytest.approx(0.5 * 0.99**TRAINED)
    assert script.told == [{EVENT: {"iteration": 0, "rate": 0.5}}, {EVENT: {"iteration": TRAINED, "rate": at_the_end}}]


def test_the_process_ends_when_the_records_are_complete(race: Callable[[Script, float], Script]) -> None:
    script = race(Script(MAKERS["momentum"], 0.5), 8.0).train(TRAINED + JUDGED + 3)
    assert script.ended_in == [TRAINED + JUDGED + 2], "the record of an iteration is written in the next one"


def test_a_script_in_another_framework_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMIX_RATE_TRIAL", "4")
    settings: Any = SimpleNamespace(rehearsal="scenario.yaml", run_dir="run")
    with pytest.raises(EnvironmentNotReady, match="in torch, and this script trains with mxnet"):
        RehearsedSession(settings, "mxnet")
