"""Quick looks see every change of what is trained, and the words for settings are those of the values at hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from worker_hooks.torch.glance import Glance, ToldSettings


def _freeze(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model[0].bias.requires_grad_(False)


def _move(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model[0].weight.data = model[0].weight.data.double()


def _replace_parameter(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model[0].weight = nn.Parameter(torch.ones(2, 2))


def _replace_module(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model[1] = nn.BatchNorm1d(2)


def _add_module(model: nn.Module, _: torch.optim.Optimizer) -> None:
    model.append(nn.Identity())


def _take_parameter_away(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[0]["params"][-1]


def _add_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def _step_another_one(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(2, 2))


CHANGES = (
    _freeze,
    _move,
    _replace_parameter,
    _replace_module,
    _add_module,
    _take_parameter_away,
    _add_group,
    _step_another_one,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.replace("_", " ").strip())
def test_a_glance_sees_every_change(
    model: nn.Module, change: Callable[[nn.Module, torch.optim.Optimizer], None]
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    glance = Glance([model], [optimizer])
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert glance.same(), "training itself changes nothing of it"
    change(model, optimizer)
    assert not glance.same()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


def test_the_words_follow_every_change(model: nn.Module) -> None:
    settings, norms = ToldSettings(), [model[1]]
    sgd = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    adam = torch.optim.Adam(model[2].parameters(), lr=0.2, betas=(0.5, 0.75))
    both = [sgd, adam]
    first = "lr 0.1, momentum 0.9, weight_decay 0, lr 0.2, betas (0.5, 0.75), weight_decay 0"

    def words(ema_decay: float | None = None) -> str:
        told = settings.words(both, norms, ema_decay)
        assert told == ToldSettings().words(both, norms, ema_decay), "as a worker says it that has just come"
        return told

    assert words() == words() == first
    sgd.param_groups[0]["lr"] = 1
    assert words().startswith("lr 1, momentum")
    sgd.param_groups[0]["lr"] = 1.0
    assert words().startswith("lr 1.0, momentum")
    adam.param_groups[0]["betas"] = (0.5, 0.875)
    assert "betas (0.5, 0.875)" in words()
    model[1].eval()
    assert words().endswith("weight_decay 0, batch norm e")
    assert words(0.5).endswith("batch norm e, ema_decay 0.5")
    both.pop()
    assert "betas" not in words()


def test_a_value_that_changes_in_place_is_told_too(model: nn.Module) -> None:
    settings, rate, betas = ToldSettings(), torch.tensor(0.5), [0.5, 0.75]
    sgd = torch.optim.SGD(model[0].parameters(), lr=rate)
    adam = torch.optim.Adam(model[2].parameters())
    adam.param_groups[0]["betas"] = betas
    before = settings.words([sgd, adam], [], None)
    rate.fill_(0.25)
    assert settings.words([sgd, adam], [], None) == before.replace("lr 0.5", "lr 0.25") != before
    betas[0] = 0.25
    assert "betas [0.25, 0.75]" in settings.words([sgd, adam], [], None)
