"""A small training in an elastic job, something that happens to its workers, and the same training in one process.

A story has two texts of Python. `model` defines `data`, `model`, `optimizers`, and `before(iteration)`, which is called
first in every iteration. `fault` defines `fault(rank, iteration)`, which is called by every worker in every iteration,
before the backward pass. Every worker writes down which samples were in every sum, with which factor on the rate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.launching import dynamix

SAMPLES, WORKERS = 400, 4
PLAIN = f"""\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn({SAMPLES}, 20), torch.randint(0, 4, ({SAMPLES},)))
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]
def before(iteration): ...
"""
# kill_server(number) for a script.
KILL_SERVER = """\
import glob, os, signal
def kill_server(number):
    wanted = {f"DYNAMIX_ROLE_NAME=server-{number}".encode(), f"DYNAMIX_RUN_ID={os.environ['DYNAMIX_RUN_ID']}".encode()}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            found = set(open(path, "rb").read().split(b"\\0"))
        except OSError:
            continue
        if wanted <= found:
            os.kill(int(path.split("/")[2]), signal.SIGKILL)
"""
_TRAIN = """
import json, os, signal, time
import dynamix_ps.torch as dynamix
FAULT
run = dynamix.attach(model, optimizers, data)
sums = open(f"sums-{run.rank}.jsonl", "w", buffering=1)
for inputs, targets in run.batches(iterations=ITERATIONS):
    before(run.iteration)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    fault(run.rank, run.iteration)
    run.backward(loss)
    for optimizer in optimizers:
        optimizer.step()
    members, step = run._now.sum.view.members, run._now.batch.step
    present = [rank for rank, member in enumerate(members) if member]
    numbers = [int(number) for rank in present for number in run._sampler.indices(step, rank)]
    sums.write(json.dumps({"present": present, "numbers": numbers, "factor": run._now.rate.factor}) + "\\n")
torch.save([p.detach() for p in model.parameters()], f"weights-{run.rank}.pt")
run.close()
"""


@dataclass(frozen=True, slots=True)
class Story:
    """One job of four workers in `folder`. `keys` are further lines of the cluster file."""

    folder: Path
    iterations: int
    fault: str
    model: str = PLAIN
    wire: str = "float32"
    min_workers: int = 2
    keys: str = ""
    servers: int = 2
    comm: str = "byteps"

    def launch(self) -> Any:
        """Start it: a process with its output in one stream."""
        workers = ", ".join(["{batch: 6}"] * WORKERS)
        servers = f"wire: {self.wire}, servers: {self.servers}, " if self.comm == "byteps" else ""
        (self.folder / "cluster.yaml").write_text(
            f"name: t\nrun_dir: runs\ncomm: {self.comm}\ncluster: {{{servers}workers: [{workers}]}}\n"
            f"batch: {{min: 2, max: 64}}\nwindow: 5\nlr_rule: linear\nelastic: {{min_workers: {self.min_workers}}}\n"
            f"metrics: {{network: 'off', tensorboard: false}}\n{self.keys}"
        )
        train = _TRAIN.replace("FAULT", self.fault).replace("ITERATIONS", str(self.iterations))
        (self.folder / "train.py").write_text(self.model + train)
        return dynamix("launch", "-c", "cluster.yaml", "--", "python", "train.py", cwd=self.folder)

    def sums(self, rank: int) -> list[dict[str, Any]]:
        """What a worker has seen so far: `present` ranks, `numbers` of samples and `factor` of every sum."""
        file = self.folder / f"sums-{rank}.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def weights(self, rank: int) -> list[torch.Tensor]:
        """The last ones of a worker."""
        found: list[torch.Tensor] = torch.load(self.folder / f"weights-{rank}.pt")
        return found

    def check(self, ranks: list[int], rtol: float = 1e-5) -> None:
        """These workers have ended with the same weights: those of one process with the same samples and rates."""
        first, *others = map(self.weights, ranks)
        assert all(all(map(torch.equal, first, other)) for other in others), "bit for bit"
        for found, expected in zip(first, self.replayed(self.sums(ranks[0])), strict=True):
            assert torch.allclose(found, expected, rtol=rtol, atol=rtol / 10), (found - expected).abs().max()

    def replayed(self, sums: list[dict[str, Any]]) -> list[torch.Tensor]:
        """The weights of one process after steps with these samples and rates."""
        own: dict[str, Any] = {}
        exec(self.model, own)
        inputs, targets = own["data"].tensors
        groups = [group for optimizer in own["optimizers"] for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for iteration, one in enumerate(sums):
            own["before"](iteration)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * one["factor"]
            for optimizer in own["optimizers"]:
                optimizer.zero_grad()
            numbers = one["numbers"]
            torch.nn.functional.cross_entropy(own["model"](inputs[numbers]), targets[numbers]).backward()  # type: ignore[no-untyped-call]
            for optimizer in own["optimizers"]:
                optimizer.step()
        return [parameter.detach() for parameter in own["model"].parameters()]
