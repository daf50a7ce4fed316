"""The words for settings are always those of the values at hand, though they are made only where one has changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker_hooks.torch.glance import ToldSettings


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
