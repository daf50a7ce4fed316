"""Losses and scores of images and of text."""

import math

import torch
from torch.nn.functional import cross_entropy

from benchmarks.workloads import objective


def made_up(*targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets, of which about half are right."""
    torch.manual_seed(0)
    wanted = torch.randint(3, targets)
    return torch.randn(*targets, 3) + 2 * torch.nn.functional.one_hot(wanted, 3), wanted


def test_images() -> None:
    logits, targets = made_up(8)
    loss = cross_entropy(logits, targets)
    torch.testing.assert_close(objective.mean_loss(logits, targets), loss)
    assert objective.weight(targets) is None
    found = objective.scores(logits, targets)
    assert list(found) == ["accuracy", "loss"]
    assert found["accuracy"] == objective.correct(logits, targets) == (logits.argmax(1) == targets).sum()
    torch.testing.assert_close(found["loss"], 8 * loss)


def test_text_counts_bytes_and_scores_means_over_the_bytes_of_a_sample() -> None:
    logits, targets = made_up(8, 5)
    each = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(objective.mean_loss(logits, targets), each.mean())
    assert objective.weight(targets) == 40
    found = objective.scores(logits, targets)
    torch.testing.assert_close(found["loss"], each.mean(1).sum())
    torch.testing.assert_close(found["bpb"], each.mean(1).sum() / math.log(2))
    assert 0 < objective.correct(logits, targets) < 40
    torch.testing.assert_close(5 * found["accuracy"], objective.correct(logits, targets).float())
