"""torch loads its compiler where something is compiled, and not before. Each case is a process of its own."""

from __future__ import annotations

import sys

import pytest

from benchmarks.testbed.ports import free_port
from tests.launching import run_to_end

pytestmark = pytest.mark.timeout(120)

BEGIN = """
import sys, torch
import dynamix_ps.torch as dynamix
from worker_hooks.torch.lazy_dynamo import loaded
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
def train(forward, **length):
    run = dynamix.attach(model, optimizer, data, batch_size=8)
    for inputs, targets in run.batches(**length):
        optimizer.zero_grad()
        run.backward(((forward(inputs) - targets) ** 2).mean())
        optimizer.step()
    run.close()
"""


def printed(script: str) -> list[str]:
    """The lines that a process prints."""
    done = run_to_end([sys.executable, "-c", BEGIN + script])
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_training_needs_no_compiler() -> None:
    script = "train(model, epochs=1)\nstate = optimizer.state_dict()\noptimizer.load_state_dict(state)\nprint(loaded())"
    assert printed(script) == ["None"]


@pytest.mark.slow
def test_a_ring_needs_no_compiler() -> None:
    script = f"""
torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
torch.distributed.all_reduce(torch.ones(3))
train(model, epochs=1)
print(loaded())
rules = torch._dynamo.trace_rules
print(rules.lookup(len) is not None, loaded() is not None)
rules.clear_lru_cache()
"""
    assert printed(script) == ["None", "True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted",
    [
        "torch.compile(model, backend='eager')(torch.randn(2, 3))",
        "import torch._dynamo.config",
        "from torch._dynamo import explain",
        "import torch._dynamo; torch._dynamo.reset()",
        "torch.compiler.disable(model)",
    ],
)
def test_whoever_wants_it_has_it(wanted: str) -> None:
    """As if it had been there from the beginning; a step of an optimizer is not compiled."""
    script = f"""
train(model, epochs=1)
assert loaded() is None
{wanted}
import torch._dynamo
assert loaded() is torch._dynamo and type(torch._dynamo).__name__ == "module"
compiled = torch.compile(model, backend="eager")
train(compiled, epochs=1)
before = model.weight.detach().clone()
step = torch.compile(lambda: (optimizer.step(), optimizer.zero_grad()), backend="eager")
step()
print(bool((model.weight != before).any()), all(p.grad is None for p in model.parameters()))
"""
    assert printed(script) == ["True", "True"]


@pytest.mark.slow
def test_where_it_is_loaded_already_nothing_changes() -> None:
    done = run_to_end([sys.executable, "-c", "import torch._dynamo\n" + BEGIN + "print(loaded() is torch._dynamo)"])
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr
