"""A worker is lost in a job with a frozen layer, with two optimizers, and with fewer bytes on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.membership.elastic_story import CHANGES_WIRE, SAMPLES, Story
from tests.launching import ends

pytestmark = pytest.mark.timeout(240)

LOST_IN, THAWED_IN, ITERATIONS = 20, 30, 40
# The layer in the middle is frozen at first. Then the second optimizer steps it too. With its own eps Adam would turn
# the rounding of a gradient that is nearly zero into a whole step.
MODEL = f"""\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn({SAMPLES}, 20), torch.randint(0, 4, ({SAMPLES},)))
model = torch.nn.Sequential(torch.nn.Linear(20, 512), torch.nn.Tanh(), torch.nn.Linear(512, 32), torch.nn.Linear(32, 4))
model[2].requires_grad_(False)
optimizers = [
    torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9),
    torch.optim.Adam([*model[2].parameters(), *model[3].parameters()], lr=0.002, eps=1e-3),
]
def before(iteration):
    model[2].requires_grad_(iteration >= {THAWED_IN})
"""
FAULT = f"""\
def fault(rank, iteration):
    if (rank, iteration) == (2, {LOST_IN}):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("wire", ["float32", "auto"])
def test_the_others_go_on_to_the_result_of_one_process(wire: str, tmp_path: Path) -> None:
    """After the loss, those that are left lay the buckets out anew for the layer that is thawed."""
    story = Story(tmp_path, ITERATIONS, CHANGES_WIRE * (wire == "auto") + FAULT, MODEL, wire)
    ends(story.launch(), 0, limit_s=200)
    present = [one["present"] for one in story.sums(1)]
    assert present == [[0, 1, 2, 3]] * LOST_IN + [[0, 1, 3]] * (ITERATIONS - LOST_IN)
    story.check([0, 1, 3])
    if wire == "auto":
        assert story.wires() == [(9, "int8"), (18, "bf16"), (27, "float32"), (36, "int8")]
    story.assert_nothing_left()
