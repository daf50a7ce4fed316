"""While one thread makes a part of a step, others see what they see after a plain step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.unit.worker_hooks.late_exchange import LateTraining
from tests.unit.worker_hooks.test_late_steps import Net, batches, equal, loss_of, state_of
from worker_hooks.torch import compiled, late_steps

_MEET_S = 0.2  # for a thread that does not wait to be done before the step goes on


def halve_rate(net: Net, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


OTHERS: dict[str, Callable[[Net, torch.optim.Optimizer], Any]] = {
    "weight": lambda net, optimizer: net.layers[0].weight.detach().clone(),
    "state": lambda net, optimizer: optimizer.state[net.layers[0].weight]["momentum_buffer"].clone(),
    "zero_grad": lambda net, optimizer: optimizer.zero_grad(),
    "rate": halve_rate,
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_thread_beside_a_part_of_a_step(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "is_used", lambda: False)
    plain, net = Net(), Net()
    training = LateTraining(net)
    expected, optimizer = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (plain, net))
    training.hook(optimizer)
    plain_torch = late_steps._plain_torch
    for x in batches():
        loss_of(plain, x).backward()
        expected.step()
        training.begin_batch()
        training.backward(loss_of(net, x))
        optimizer.step()
        found: list[Any] = []
        thread = threading.Thread(target=lambda found=found: found.append(OTHERS[other](net, optimizer)))  # type: ignore[misc]

        @contextmanager
        def with_a_thread(thread: threading.Thread = thread) -> Iterator[None]:
            with plain_torch():
                if thread.ident is None:
                    thread.start()
                    thread.join(_MEET_S)
                yield

        monkeypatch.setattr(late_steps, "_plain_torch", with_a_thread)
        net.layers[0](x)
        thread.join(60)
        assert equal(found, [OTHERS[other](plain, expected)])
    assert equal(state_of(net, optimizer), state_of(plain, expected))
