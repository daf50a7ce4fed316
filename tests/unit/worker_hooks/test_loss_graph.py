"""What the graph of a loss tells of how it combines over workers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (as scripts have it)
from torch.utils.checkpoint import checkpoint

from worker_hooks.torch.loss.gathered_rows import GatheredRows
from worker_hooks.torch.loss.loss_graph import LossCheck

SAMPLES = 8
model = nn.Linear(6, 4)
convolution = nn.Conv1d(1, 3, 3)
words = nn.Embedding(5, 6)
x = torch.randn(SAMPLES, 6)
classes = torch.arange(SAMPLES) % 4
y = torch.randn(SAMPLES, 4)
tokens = torch.randint(5, (SAMPLES, 3))
next_tokens = torch.randint(4, (SAMPLES, 3))
mask = torch.arange(SAMPLES * 3).reshape(SAMPLES, 3) % 5 > 0
class_weights = torch.tensor([1.0, 2.0, 1.0, 1.0])
centers = nn.Parameter(torch.randn(SAMPLES, 4))  # as many as the batch has samples
mixed = nn.Parameter(torch.randn(SAMPLES, 6))  # as many rows as the batch has samples


def of_tokens(**options: object) -> torch.Tensor:
    """Losses of padded tokens, whose places have the target -100 where the options say `ignored`."""
    targets = next_tokens.masked_fill(~mask, -100) if options.pop("ignored", False) else next_tokens
    return F.cross_entropy(model(words(tokens)).flatten(0, 1), targets.flatten(), **options)  # type: ignore[arg-type]


def divergence(of: torch.Tensor) -> torch.Tensor:
    """Between a normal distribution and the standard one, as in a variational autoencoder; summed."""
    mean, log_variance = of[:, :2], of[:, 2:]
    return -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


def pairs(parts: int = 1) -> torch.Tensor:
    z = F.normalize(torch.cat([model(x)] * parts))
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)).roll(1))


def uncertain_terms() -> torch.Tensor:
    """Two losses with weights that are learned."""
    scale = nn.Parameter(torch.zeros(()))
    return F.mse_loss(model(x), y) * torch.exp(-scale) + scale


MEANS: dict[str, Callable[[], torch.Tensor]] = {
    "cross entropy": lambda: F.cross_entropy(model(x), classes),
    "with smooth labels": lambda: F.cross_entropy(model(x), classes, label_smoothing=0.1),
    "equal weights of classes": lambda: F.cross_entropy(model(x), classes, weight=torch.full((4,), 2.0)),
    "no target is ignored": lambda: F.cross_entropy(model(x), classes, ignore_index=7),
    "of images": lambda: F.cross_entropy(convolution(x[:, None]), torch.zeros(SAMPLES, 4, dtype=torch.long)),
    "tokens": of_tokens,
    "mean of losses": lambda: F.cross_entropy(model(x), classes, reduction="none").mean(),
    "sum over losses of samples": lambda: F.mse_loss(model(x), y, reduction="none").sum(1).mean(),
    "mean over values, mean over samples": lambda: (model(x) - y).square().mean(1).mean(0),
    "sum of means over samples": lambda: (model(x) - y).square().mean(0).sum(),
    "absolute": lambda: F.l1_loss(model(x), y),
    "divergence": lambda: F.kl_div(model(x).log_softmax(1), y.softmax(1), reduction="batchmean"),
    "several": lambda: F.mse_loss(model(x), y) + 0.5 * F.cross_entropy(model(x), classes) - 0.1 * model(x).mean(),
    "stacked": lambda: torch.stack([F.mse_loss(model(x), y), model(x).mean()]).sum(),
    "learned weights": uncertain_terms,
    "divided by samples": lambda: F.mse_loss(model(x), y, reduction="sum") / SAMPLES,
    "divided by a tensor": lambda: F.mse_loss(model(x), y, reduction="sum") / torch.tensor(float(SAMPLES)),
    "divided by values": lambda: (model(x) - y).abs().sum() / y.numel(),
    "multiplied": lambda: 0.3 * F.mse_loss(model(x), y, reduction="sum") * (1 / SAMPLES),
    "divided by tokens of all": lambda: of_tokens(reduction="sum") / tokens.numel(),
    "divergence of samples": lambda: F.mse_loss(model(x), y) + 0.1 * divergence(model(x)) / SAMPLES,
    "penalty": lambda: F.mse_loss(model(x), y) + 1e-4 * sum(p.square().sum() for p in model.parameters()),
    "penalty of as many rows": lambda: F.mse_loss(model(mixed + x), y) + 1e-4 * (mixed.abs().sum() + mixed.norm()),
    "near earlier weights": lambda: (
        F.mse_loss(model(mixed + x), y) + F.mse_loss(mixed, torch.ones(SAMPLES, 6), reduction="sum")
    ),
    "orthogonal": lambda: F.mse_loss(model(mixed + x), y) + (mixed @ mixed.T - torch.eye(SAMPLES)).pow(2).sum(),
    "noisy weights": lambda: (
        F.mse_loss(model(x), y) + ((mixed + torch.randn(SAMPLES, 6) * mixed.exp()).pow(2).sum() - mixed.sum()) / 640
    ),
    "sum over values of means over samples": lambda: F.mse_loss(model(x), y, reduction="none").mean(0).sum() / 4,
    "roots of numbers": lambda: torch.stack([F.mse_loss(one, y[0, 0]).sqrt().sum(0) for one in model(x)[:, 0]]).mean(0),
    "norms of samples": lambda: (model(x).norm(dim=1) - 1).square().mean() + F.cosine_similarity(model(x), y).mean(),
    "softmax of values": lambda: (model(x).softmax(1) * model(x).log_softmax(1)).sum(1).mean(),
    "stacked losses of samples": lambda: torch.stack([F.mse_loss(one, y[0]).sqrt() for one in model(x)]).mean(),
    "distances to centers": lambda: torch.mean(torch.cdist(x @ model.weight.T, centers).min(1).values),
    "centers by element": lambda: torch.mean((model(x)[:, None] - centers[None]).square().sum(2).min(1).values),
    "chosen values": lambda: -model(x).log_softmax(1)[torch.arange(SAMPLES), classes].mean(),
    "multiplied by data": lambda: (model(x) * y).sum(1).exp().mean() * x.std(),
    "rare classes": lambda: nn.BCEWithLogitsLoss(pos_weight=torch.full((4,), 3.0))(model(x), y.sigmoid()),
}  # fmt: skip
NO_MEANS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sum": (lambda: F.cross_entropy(model(x), classes, reduction="sum"), 'divided by nothing.*reduction="sum"'),
    "divided by a constant": (
        lambda: F.cross_entropy(model(x), classes, reduction="sum") / 30,
        "sum divided by 30, and this worker's batch has 8 samples",
    ),
    "of values": (lambda: ((model(x) - y) ** 2).sum() / 30, "sum divided by 30"),
    "in two steps": (lambda: ((model(x) - y) ** 2).sum(1).sum(0) / 30, "sum divided by 30"),
    "of losses": (lambda: F.mse_loss(model(x), y, reduction="none").sum(), "divided by nothing"),
    "autoencoder": (
        lambda: F.binary_cross_entropy(model(x).sigmoid(), y.sigmoid(), reduction="sum") + divergence(model(x)),
        "divided by nothing",
    ),
    "one of two": (lambda: F.mse_loss(model(x), y) + 0.3 * divergence(model(x)), "sum divided by"),
    "per token": (
        lambda: (of_tokens(reduction="none").view(SAMPLES, 3) * mask).sum() / mask.sum(),
        r"divided by 19, .*weight=units",
    ),
    "classes": (
        lambda: F.cross_entropy(model(x), classes, weight=class_weights),
        r"weight=class_weights\[targets\].sum\(\)",
    ),
    "ignored": (lambda: of_tokens(ignored=True), r"weight=\(targets != -100\).sum\(\)"),
    "ignored class": (lambda: F.cross_entropy(model(x), classes, ignore_index=2), r"\(targets != 2\)"),
}
PAIRS, OF_ALL = "pairs of each worker's own samples", "is no mean over samples: a value of the whole batch"
IN_DOUBT: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "pairs": (pairs, r"pairs of each worker's own samples, .* compute it over run.gather\(outputs\)"),
    "pairs of two views": (lambda: pairs(2), "pairs of each worker's own samples"),
    "distances": (lambda: torch.mean(torch.cdist(model(x), model(x)).max(1).values), PAIRS),
    "distances by products": (lambda: torch.mean(torch.cdist(*[model(torch.cat([x] * 5))] * 2)), PAIRS),
    "distances of half of the pairs": (lambda: F.pdist(torch.cat([model(x)] * 2)).mean(), PAIRS),
    "pairs by element": (lambda: (model(x)[:, None] - model(x)[None]).square().sum(2).exp().mean(), PAIRS),
    "pairs by einsum": (lambda: torch.einsum("id,jd->ij", model(x), model(x)).exp().mean(), PAIRS),
    "chosen rows": (lambda: F.mse_loss(model(x)[:5], y[:5]), "mean over 5 rows, .*8 samples"),
    "rows by a mask": (lambda: (model(x) - y)[classes > 0].abs().mean(), "mean over 6 rows, .*8 samples"),
    "root of a mean": (lambda: F.mse_loss(model(x), y).sqrt(), OF_ALL),
    "beside a mean": (lambda: F.mse_loss(model(x), y) + 0.1 * (model(x) - y).abs().mean().log(), OF_ALL),
    "means of outputs": (lambda: F.mse_loss(model(x), y) + model(x).mean(0).square().sum(), OF_ALL),
    "variance": (lambda: F.relu(1 - model(x).var(0)).mean(), OF_ALL),
    "deviation": (lambda: model(x).std(), OF_ALL),
    "around the mean": (lambda: (model(x) - model(x).mean(0)).square().mean(), OF_ALL),
    "ratio of means": (lambda: (model(x) * y).mean() / model(x).square().mean(), OF_ALL),
    "times its mean": (lambda: (model(x) * model(x).mean(0)).sum() / SAMPLES, OF_ALL),
    "correlation": (lambda: (model(x).T @ model(2 * x) / SAMPLES - torch.eye(4)).square().sum(1).mean(), OF_ALL),
    "norm of all": (lambda: torch.linalg.vector_norm(model(x) - y), OF_ALL),
    "softmax over samples": (lambda: -model(x).log_softmax(0).mean(), OF_ALL),
    "several batches": (lambda: F.mse_loss(model(x), y, reduction="sum") / (40 * SAMPLES), "sum divided by 320"),
}


def found(loss: torch.Tensor, scale: float = 1.0, is_whole: bool = True) -> list[tuple[str, bool]]:
    return [(one.text, one.is_certain) for one in LossCheck().of_mean(loss, SAMPLES, scale, is_whole)]


@pytest.mark.parametrize("name", MEANS)
def test_means_over_samples_are_right(name: str) -> None:
    assert found(MEANS[name]()) == []


@pytest.mark.parametrize("name", NO_MEANS)
def test_what_is_no_mean_is_told_with_what_to_write(name: str) -> None:
    loss, said = NO_MEANS[name]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for told in (found(loss()), found(scaler.scale(loss()), 2.0**10)):
        assert all(is_certain for _, is_certain in told) and told
        assert re.search(said, told[0][0]), told


@pytest.mark.parametrize("name", IN_DOUBT)
def test_what_may_be_right_is_only_told(name: str) -> None:
    loss, said = IN_DOUBT[name]
    told = found(loss())
    assert [is_certain for _, is_certain in told] == [False] and re.search(said, told[0][0]), told


def gathered(rows: torch.Tensor, times: int = 3) -> torch.Tensor:
    """Rows of so many workers."""
    all_rows = torch.cat([rows.detach()] * times)
    result: torch.Tensor = GatheredRows.apply(rows, all_rows, 0, 3.0, None)  # type: ignore[no-untyped-call]
    return result


GATHERED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pairs": lambda z: F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)).roll(1)),
    "distances": lambda z: F.relu(1 - torch.cdist(z, z)).mean(),
    "correlations": lambda z: (z.T @ z / len(z) - torch.eye(4)).square().sum(),
    "variances": lambda z: F.relu(1 - z.std(0)).mean() + F.mse_loss(z, 2 * z).sqrt(),
    "sum over all samples": lambda z: (z @ z.T).logsumexp(1).sum() / len(z),
    "beside own samples": lambda z: (z @ z.T).logsumexp(1).mean() + F.mse_loss(model(x), y),
}


@pytest.mark.parametrize("name", GATHERED)
def test_losses_over_the_rows_of_all_workers_are_right(name: str) -> None:
    loss = GATHERED[name](gathered(F.normalize(model(x))))
    assert LossCheck().of_mean(loss, SAMPLES, 1.0, True, of_all=3 * SAMPLES) == []


def test_what_a_checkpoint_computes_anew_waits_for_backward() -> None:
    calls = []

    def forward(rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        return model(rows).log_softmax(1)

    loss = F.nll_loss(checkpoint(forward, x, use_reentrant=False), classes)
    assert found(loss) == [] and len(calls) == 1
    loss.backward()
    assert len(calls) == 2


def test_a_sum_over_the_rows_of_all_workers_is_told() -> None:
    loss = gathered(model(x)).square().sum() / SAMPLES
    (one,) = LossCheck().of_mean(loss, SAMPLES, 1.0, True, of_all=3 * SAMPLES)
    assert one.is_certain and "sum divided by 8" in one.text


def test_rows_of_a_part_of_the_batch_are_not_compared_with_its_samples() -> None:
    assert found(F.mse_loss(model(x[:3]), y[:3]) / 3, is_whole=False) == []
    assert found(F.mse_loss(model(x[:3]), y[:3], reduction="sum") / SAMPLES, is_whole=False) == []


def test_a_mean_is_no_sum() -> None:
    mean, total = F.mse_loss(model(x), y), F.mse_loss(model(x), y, reduction="sum") / 32
    assert not LossCheck().of_sum(total + 1e-4 * model.weight.square().mean())
    (one,) = LossCheck().of_sum(total + mean)
    assert one.is_certain and "has a mean in it" in one.text


def test_the_first_iteration_is_looked_at_and_for_sums_the_first_of_another_size() -> None:
    check = LossCheck()
    assert check.is_due(3, 8) and check.is_due(3, 8)
    check.of_mean(F.mse_loss(model(x), y), 8, 1.0, True)
    assert not check.is_due(4, 9) and not check.is_due(5, 8)
    check = LossCheck()
    assert check.is_due(3, 8)
    check.of_mean(F.mse_loss(model(x), y, reduction="sum") / 8, 8, 1.0, True)
    assert not check.is_due(4, 8)
    assert check.is_due(5, 9) and not check.is_due(6, 10)
