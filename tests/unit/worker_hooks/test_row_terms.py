"""Which losses are sums of terms of single rows, seen in their graphs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # as everywhere

from worker_hooks.torch.loss.row_terms import of_rows

ROWS, PLACES, CLASSES = 6, 4, 5

Loss = Callable[[torch.Tensor], torch.Tensor]


class Call(torch.autograd.Function):
    """The call of a model."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.is_call = True
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def seen(loss: Loss) -> str:
    torch.manual_seed(0)
    outputs = Call.apply(torch.randn(ROWS, PLACES, CLASSES, requires_grad=True))  # type: ignore[no-untyped-call]
    call, reason = of_rows(loss(outputs), lambda node: hasattr(node, "is_call"))
    assert (call is None) == bool(reason)
    return reason


def like(outputs: torch.Tensor) -> torch.Tensor:
    return torch.rand(outputs.shape)


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(0, CLASSES, shape)


OF_ROWS: list[Loss] = [
    lambda out: F.cross_entropy(out.view(-1, CLASSES), classes(ROWS * PLACES)),
    lambda out: F.cross_entropy(out.transpose(1, 2), classes(ROWS, PLACES)),
    lambda out: F.cross_entropy(out[:, :-1].reshape(-1, CLASSES), classes(ROWS * (PLACES - 1))),
    lambda out: F.cross_entropy(out[:, 0], classes(ROWS), label_smoothing=0.1),
    lambda out: F.cross_entropy(out[:, 0], torch.softmax(torch.randn(ROWS, CLASSES), 1)),
    lambda out: F.cross_entropy(out.permute(0, 2, 1)[..., None], classes(ROWS, PLACES, 1)),
    lambda out: F.cross_entropy(out[:, 0], classes(ROWS), reduction="none").mul(torch.rand(ROWS)).mean(),
    lambda out: 3 * (out**2).mean((1, 2)).mean(0) - out.abs().sum(-1).sum() / ROWS,
    lambda out: torch.stack([out.mean(), out.exp().mean()]).sum() * torch.tensor(1024.0),
    lambda out: F.mse_loss(out, like(out)) + F.smooth_l1_loss(out, like(out)) + F.huber_loss(out, like(out)),
    lambda out: F.binary_cross_entropy_with_logits(out, like(out)) + F.binary_cross_entropy(out.sigmoid(), like(out)),
    lambda out: F.kl_div(out.log_softmax(-1), like(out), reduction="batchmean"),
    lambda out: -out[:, 0].log_softmax(1).gather(1, classes(ROWS, 1)).mean(),
    lambda out: (out.norm(dim=-1) + out.var(-1) + out.max(-1).values + out.amax(-1) + out.logsumexp(-1)).mean(),
    lambda out: out.permute(1, 0, 2).sum(0).mean(),
    lambda out: out.permute(2, 0, 1).logsumexp(0).mean(1).sum() / ROWS,
    lambda out: F.cosine_embedding_loss(out[:, 0], torch.randn(ROWS, CLASSES), torch.ones(ROWS)),
    lambda out: F.gaussian_nll_loss(out, like(out), like(out)) + F.poisson_nll_loss(out, like(out)),
    lambda out: F.multi_margin_loss(out[:, 0], classes(ROWS)),
    lambda out: F.mse_loss(out[:, 0, :1].squeeze(1), torch.rand(ROWS)),
    lambda out: (1 - F.cosine_similarity(out[:, 0], out[:, 1])).clamp(min=0.1).mean(),
    lambda out: F.mse_loss(out.bfloat16().float().flatten(1), torch.rand(ROWS, PLACES * CLASSES)),
]

OF_MORE: list[tuple[Loss, str]] = [
    (lambda out: out.mean() * out.mean(), "Mul of a value of all rows"),
    (lambda out: out.mean().exp(), "Exp of a value of all rows"),
    (lambda out: 1 / out.pow(2).mean(), "Reciprocal of a value of all rows"),
    (lambda out: out.mean(0).abs().sum(), "Abs of a value of all rows"),
    (lambda out: (out - out.mean(0)).abs().mean(), "(Sub)"),
    (lambda out: (out[:, 0, 0][:, None] - out[:, 0, 0]).relu().mean(), "(Sub)"),
    (lambda out: F.nll_loss(out[:, 0].T, torch.zeros(CLASSES).long()), "(NllLoss)"),
    (lambda out: F.nll_loss(out[:, 0, 0], torch.tensor(3)), "(NllLoss)"),
    (lambda out: F.multi_margin_loss(out[:, 0, 0], torch.tensor(3)), "(MultiMarginLoss)"),
    (lambda out: out.view(ROWS // 2, 2, -1).amax(1).mean(), "(View)"),
    (lambda out: out.permute(1, 0, 2).reshape(-1, CLASSES).abs().mean(), "(UnsafeView)"),
    (lambda out: out.softmax(0).pow(2).mean(), "(Softmax)"),
    (lambda out: out.amax((0, 2)).mean(), "(Amax)"),
    (lambda out: out[0].mean(), "(Select)"),
    (lambda out: out[2:].mean(), "(Slice)"),
    (lambda out: out[torch.randperm(ROWS)].mean(), "(Index)"),
    (lambda out: out.gather(0, torch.zeros(ROWS, PLACES, CLASSES).long()).mean(), "(Gather)"),
    (lambda out: out.flatten().norm(), "(LinalgVectorNorm)"),
    (lambda out: out.max(), "(Max)"),
    (lambda out: torch.cat([out, out]).mean(), "(Cat)"),
    (lambda out: out[:, 0] @ out[:, 0].T, "(Mm)"),
    (lambda out: out.abs(), "no sum over the rows"),
    (lambda out: out.mean() + torch.nn.Parameter(torch.ones(())), "parameters by another way"),
    (lambda out: torch.ones(()).requires_grad_() * 2, "parameters by another way"),
    (lambda out: out.detach().mean(), "no call of a model"),
]


@pytest.mark.parametrize("loss", OF_ROWS)
def test_sums_over_rows(loss: Loss) -> None:
    assert not seen(loss)


@pytest.mark.parametrize(("loss", "told"), OF_MORE)
def test_what_may_be_no_sum_over_rows(loss: Loss, told: str) -> None:
    assert told in seen(loss)
