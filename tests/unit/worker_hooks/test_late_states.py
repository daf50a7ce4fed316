"""The states of an optimizer whose steps are taken later are those after the plain step, whoever looks at them."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.worker_hooks.late_exchange import LateTraining
from tests.unit.worker_hooks.test_late_steps import Net, batches, equal, loss_of, state_of


def load_other_state(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(OTHER))


STATE_READERS: dict[str, Callable[[torch.optim.Optimizer], object]] = {
    "state_dict": lambda optimizer: copy.deepcopy(optimizer.state_dict()),
    "by_parameter": lambda optimizer: [optimizer.state[p] for p in optimizer.param_groups[0]["params"]],
    "items": lambda optimizer: sorted(float(state["exp_avg"].sum()) for _, state in optimizer.state.items()),
    "deepcopy": lambda optimizer: copy.deepcopy(optimizer).state_dict(),
    "copy": lambda optimizer: len(copy.copy(optimizer.state)),
    "order": lambda optimizer: list(optimizer.state_dict()["state"]),
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)).state_dict(),
    "load": load_other_state,
    "length": lambda optimizer: len(optimizer.state),
}
OTHER = torch.optim.Adam(Net().parameters(), lr=0.3).state_dict()


@pytest.mark.parametrize("reader", STATE_READERS)
def test_whoever_looks_at_the_state_of_an_optimizer_waits(reader: str) -> None:
    plain, net = Net(), Net()
    training = LateTraining(net)
    expected, optimizer = (torch.optim.Adam(one.parameters(), lr=0.1) for one in (plain, net))
    training.hook(optimizer)
    for x in batches():
        loss_of(plain, x).backward()
        expected.step()
        training.begin_batch()
        training.backward(loss_of(net, x))
        optimizer.step()
        assert equal(STATE_READERS[reader](optimizer), STATE_READERS[reader](expected))
    assert equal(state_of(net, optimizer), state_of(plain, expected))


@pytest.mark.parametrize(
    "keep",
    [
        lambda optimizer: optimizer.state,
        lambda optimizer: list(optimizer.state.values()),
        lambda optimizer: [state["momentum_buffer"] for state in optimizer.state.values()],
    ],
)
def test_where_the_script_keeps_states_the_step_is_made_at_once(keep: Callable[[torch.optim.Optimizer], Any]) -> None:
    net = Net()
    training = LateTraining(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    training.hook(optimizer)
    kept: Any = None
    for x in batches():
        training.begin_batch()
        training.backward(loss_of(net, x))
        optimizer.step()
        assert bool(training.late) == (kept is None)
        training.sums.complete()
        kept = keep(optimizer)
    assert "states of SGD" in training.told[0]


def test_a_state_that_is_loaded_stays() -> None:
    plain, net = Net(), Net()
    training = LateTraining(net)
    expected, optimizer = (torch.optim.Adam(one.parameters(), lr=0.1) for one in (plain, net))
    training.hook(optimizer)
    x = next(batches())
    loss_of(plain, x).backward()
    expected.step()
    training.backward(loss_of(net, x))
    optimizer.step()
    for one in (expected, optimizer):
        one.state = defaultdict(dict)
    assert equal(state_of(net, optimizer), state_of(plain, expected)) and not optimizer.state
