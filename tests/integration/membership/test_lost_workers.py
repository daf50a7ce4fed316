"""Workers of a job are killed while it trains, and the others go on to the result of one process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dynamix_ps.run_record.json_lines import JsonLinesTail
from tests.integration.membership.elastic_story import SAMPLES, Story
from tests.launching import ends

pytestmark = pytest.mark.timeout(240)

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
    model[2].requires_grad_(iteration >= 30)
"""
FAULT = """
def fault(rank, iteration):
    if (rank, iteration) in ((2, 0), (0, 60)):
        os.kill(os.getpid(), signal.SIGKILL)
    if (rank, iteration) == (1, 55):
        kill_arbitrator()
"""


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_the_others_go_on_to_the_result_of_one_process(comm: str, tmp_path: Path) -> None:
    """A worker is lost in the first iteration; later the arbitrator, and while it is away the worker that leads.

    Between both, buckets are laid out anew for the layer that is thawed.
    """
    story = Story(tmp_path, None, FAULT, MODEL, epochs=6, comm=comm)
    ends(story.launch(), 0, limit_s=200)
    present = [one["present"] for one in story.sums(1)]
    assert present == [[0, 1, 3]] * 60 + [[1, 3]] * (len(present) - 60)
    story.check_epochs(1)
    story.check([1, 3])
    summary = story.summary()
    assert summary["reason"].startswith(
        "2 of 4 workers finished: worker-2 was killed by SIGKILL at iteration 0; worker-0"
    )
    assert [loss.split(",")[0] for loss in summary["losses"]] == [
        "3 of 4 workers from iteration 0: worker 2 lost",
        "2 of 4 workers from iteration 60: worker 0 lost",
    ]
    assert [row["state"] for row in summary["per_worker"]] == ["lost", "finished", "lost", "finished"]
    starts = [line["restarts"] for line in JsonLinesTail(story.record.journal_file).read() if line["kind"] == "started"]
    assert starts == [0, 1], "it decided on the second loss by what it had written of the first"
    there = [tuple(rank for rank, size in enumerate(sizes) if size) for sizes in story.planned()]
    assert [ranks for ranks, _ in itertools.groupby(there)][-2:] == [(0, 1, 3), (1, 3)], "its plans are of those there"
    assert {sum(sizes) for sizes in story.planned()} == {24}
    story.assert_nothing_left()
