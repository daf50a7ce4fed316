"""What is trained changes while training runs, or lies outside the first model."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.cases.harness import data, net, weights


def unfreeze(attach: Any) -> Any:
    """The first layer is frozen at attach, and trained from iteration 4 on."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=10):
        if run.iteration == 4:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def freeze(attach: Any) -> Any:
    """And back; a frozen layer with a gradient left would be stepped."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=12):
        if run.iteration == 4:
            model[0].requires_grad_(False)
        if run.iteration == 8:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def head_in_the_optimizer_only(attach: Any) -> Any:
    """A loss with weights of its own: in the optimizer, not in the model."""
    model, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        optimizer.zero_grad()
        run.backward(mse_loss(head(model(x)), y))
        optimizer.step()
    run.close()
    return weights(model, head)


def add_a_group(attach: Any) -> Any:
    """add_param_group() in mid-run, between two batches."""
    model, head = nn.Linear(6, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for iterations in (4, 8):
        for _, x, y in run.batches(iterations=iterations):
            optimizer.zero_grad()
            found = model(x)
            run.backward(mse_loss(head(found) if iterations == 8 else found, y))
            optimizer.step()
        if iterations == 4:
            optimizer.add_param_group({"params": head.parameters(), "lr": 0.02})
    run.close()
    return weights(model, head)


def add_a_layer(attach: Any) -> Any:
    """The model grows while it trains, inside the loop."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        if run.iteration == 3 and len(model) == 3:
            torch.manual_seed(5)
            model.append(nn.Linear(1, 1))
            optimizer.add_param_group({"params": model[3].parameters()})
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def replace_a_layer(attach: Any) -> Any:
    """A new head, and a new optimizer for it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        if run.iteration == 3:
            torch.manual_seed(5)
            model[2] = nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
    run.close()
    return weights(model)


def to_double(attach: Any) -> Any:
    """The model is cast after attach."""
    model = net().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(iterations=8):
        if run.iteration == 3:
            model.double()
        kind = next(model.parameters()).dtype
        optimizer.zero_grad()
        run.backward(mse_loss(model(x.to(kind)), y.to(kind)))
        optimizer.step()
    run.close()
    return weights(model)


def two_optimizers_one_loss(attach: Any) -> Any:
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    run = attach(model, [first, second], data())
    for _, x, y in run.batches(iterations=8):
        first.zero_grad()
        second.zero_grad()
        run.backward(mse_loss(model(x), y))
        first.step()
        second.step()
    run.close()
    return weights(model)


def gan(attach: Any) -> Any:
    """Two models, two optimizers, two sums per batch in one attach."""
    g, d = net(outputs=2), net(inputs=2)
    of_g, of_d = torch.optim.Adam(g.parameters(), 1e-2), torch.optim.Adam(d.parameters(), 1e-2)
    run = attach([g, d], [of_g, of_d], data())
    bce = nn.functional.binary_cross_entropy_with_logits
    for _, x, y in run.batches(iterations=8):
        real, ones, zeros = torch.cat([y, y * y], 1), torch.ones_like(y), torch.zeros_like(y)
        of_d.zero_grad()
        run.backward(bce(d(real), ones) / 2 + bce(d(g(x).detach()), zeros) / 2)
        of_d.step()
        of_g.zero_grad()
        run.backward(bce(d(g(x)), ones))
        of_g.step()
    run.close()
    return weights(g, d)


def gan_of_two_attaches(attach: Any) -> Any:
    """The same with an attach for each, whose batches are zipped."""
    g, d = net(outputs=2), net(inputs=2)
    of_g, of_d = torch.optim.Adam(g.parameters(), 1e-2), torch.optim.Adam(d.parameters(), 1e-2)
    of_data = data()
    run_d, run_g = attach(d, of_d, of_data), attach(g, of_g, of_data)
    bce = nn.functional.binary_cross_entropy_with_logits
    for (_, x, y), (_, z, _) in zip(run_d.batches(epochs=2), run_g.batches(epochs=2), strict=True):
        real, ones, zeros = torch.cat([y, y * y], 1), torch.ones_like(y), torch.zeros_like(y)
        of_d.zero_grad()
        run_d.backward(bce(d(real), ones) / 2 + bce(d(g(x).detach()), zeros) / 2)
        of_d.step()
        of_g.zero_grad()
        run_g.backward(bce(d(g(z)), torch.ones(len(z), 1)))
        of_g.step()
    run_d.close()
    run_g.close()
    return weights(g, d)


class _OfEveryKind(nn.Module):
    """A quantised layer with all kinds of frozen parameters; of the trained ones one is a number, and one is empty."""

    KINDS = ("int8", "int64", "uint8", "uint16", "bool", "float16", "complex64", "float8_e4m3fn", "float8_e5m2")

    def __init__(self) -> None:
        super().__init__()
        own = int(os.environ.get("DMLC_WORKER_ID", "0"))  # all take the values of worker 0
        for kind in self.KINDS:
            if dtype := getattr(torch, kind, None):  # some have no float8
                values = (torch.arange(6) + own).view(6, 1).to(torch.float32).to(dtype)
                setattr(self, kind, nn.Parameter(values, requires_grad=False))
        self.empty_and_frozen = nn.Parameter(torch.zeros(0, 3, dtype=torch.int8), requires_grad=False)
        self.number_and_frozen = nn.Parameter(torch.tensor(3 + own), requires_grad=False)
        self.number = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.zeros(0, 6))
        self.empty_of_another_type = nn.Parameter(torch.zeros(0, dtype=torch.float32))
        self.register_buffer("scales", torch.full((6,), 0.25 + own).to(getattr(torch, "float8_e4m3fn", torch.float16)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = torch.cat([x, self.empty]) * self.number / self.number_and_frozen
        found: torch.Tensor = self.scales.to(x.dtype).mean() * added + self.empty_of_another_type.sum()
        for kind in self.KINDS:
            if hasattr(self, kind):
                value = getattr(self, kind)
                found = found + 0.01 * added * (value.real if value.is_complex() else value).to(x.dtype).flatten()
        return found

    def values(self) -> dict[str, list[float]]:
        """Of everything, both parts of complex numbers."""
        return {
            name: (torch.view_as_real(one) if one.is_complex() else one).detach().double().flatten().tolist()
            for name, one in self.state_dict().items()
        }


def of_every_kind(attach: Any) -> Any:
    """Five iterations, a file of the script's own, and five more with another model that takes it."""
    file = io.BytesIO()
    for iterations in (5, 10):
        torch.manual_seed(iterations)
        kinds, head = _OfEveryKind(), net()
        model = nn.Sequential(kinds, head)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        if iterations > 5:
            saved = torch.load(file, weights_only=False)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        run = attach(model, optimizer, data())
        if iterations > 5:
            run.load_state_dict(saved["run"])
        for number, (_, x, y) in enumerate(run.batches(iterations=iterations)):
            optimizer.zero_grad()
            run.backward(mse_loss(model(x), y))
            optimizer.step()
            if iterations > 5 and number == 2:  # added before the next batch: all take the values of worker 0
                model.append(_OfEveryKind())
                model[2].scales = kinds.scales.clone()
                model[2].forward = model[2].number.mul  # type: ignore[method-assign]
                optimizer.add_param_group({"params": model[2].parameters()})
        if iterations == 5:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}, file
            )
            file.seek(0)
        run.close()
    return kinds.values(), weights(head), [one.values() for one in model if isinstance(one, _OfEveryKind)]
