"""A small training in an elastic job, something that happens to its workers, and the same training in one process.

A story has two texts of Python. `model` defines `data`, `model`, `optimizers`, and `before(iteration)`, which is
called first in every iteration. `fault` defines `fault(rank, iteration)`, which is called by every worker in every
iteration, before the backward pass. Where it needs them, it also defines `attached()`, `stepped(present)`, called
with the ranks of the sum after every step, and `enough()`, which ends the training. They use `run`, and

    first             whether this process is the first one of its worker
    all_have_met()    waits until all members of the job have met, and this worker knows it
    kill_server(number, iteration)    while all train: called in `fault` of this iteration, it waits until every worker
        has the sums before it, as a worker that lacks one which only this server has is lost, too
    kill_scheduler()  as soon as one is there; the arbitrator ends with it, and the launcher starts it again
    kill_arbitrator() what has started it starts it again
    processes(word)   those of this run with this word in their environment or command line

Every worker writes down which samples were in every sum, with which factor on the rate. At the end all of them evaluate
the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynamix_ps.arbitrator.journal import DECISIONS
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder
from tests.integration.training.replay import replayed
from tests.launching import assert_nothing_left, dynamix, ends, launch_by, run_id_in

SAMPLES = 400
PLAIN = f"""\
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn({SAMPLES}, 20), torch.randint(0, 4, ({SAMPLES},)))
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]
def before(iteration): ...
"""
WIDE = PLAIN.replace("64", "512")  # its gradient has pieces on every server, most of them without the trailer
# For long trainings: differences in the last digit of float32 grow in some thousand steps.
DOUBLE = PLAIN.replace("20), torch", "20).double(), torch").replace(
    "torch.nn.Linear(64, 4))", "torch.nn.Linear(64, 4)).double()"
)
# By what is on the wire; the errors of a lost server go with it.
TOLERANCE = {"float32": 1e-5, "bf16": 1e-2, "int8": 5e-2, "auto": 1e-2}
_TOOLS = """\
import functools, glob, json, os, pathlib, signal, time
first = os.environ.get("DYNAMIX_STARTS", "0") == "0"
def processes(word):
    wanted = {word.encode(), f"DYNAMIX_RUN_ID={os.environ['DYNAMIX_RUN_ID']}".encode()}
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            found = open(f"{folder}/environ", "rb").read() + b"\\0" + open(f"{folder}/cmdline", "rb").read()
        except OSError:
            continue
        if wanted <= set(found.split(b"\\0")):
            yield int(folder.split("/")[2])
def newest(path):
    with open(path) as file:
        return max((json.loads(line)["iteration"] for line in file if line.endswith("\\n")), default=-1)
def kill_server(number, iteration, with_signal=signal.SIGKILL):
    while min(map(newest, glob.glob("sums-*.jsonl"))) < iteration - 1:
        time.sleep(0.01)
    for pid in processes(f"DYNAMIX_ROLE_NAME=server-{number}"):
        os.kill(pid, with_signal)
def kill_scheduler():
    while not (found := set(processes("DYNAMIX_ROLE_NAME=scheduler")) - set(processes("dynamix_ps.arbitrator"))):
        time.sleep(0.05)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
def kill_arbitrator():
    for pid in processes("dynamix_ps.arbitrator"):
        os.kill(pid, signal.SIGKILL)
def all_have_met():
    while not run.training.session.may_leave:
        time.sleep(0.01)
@functools.cache
def sums():
    return open(f"sums-{run.rank}.jsonl", "w", buffering=1)
def write_down(rate=1.0):
    view, sampler, step = run.training.now.sum.view, run.training.data.sampler, run.training.now.batch.step
    present = [rank for rank, member in enumerate(view.members) if member]
    numbers = [int(number) for rank in present for number in sampler.indices(step, rank)]
    told = {"present": present, "numbers": numbers, "factor": run.training.now.rate.factor * rate}
    told |= {"sizes": list(view.worker_samples), "lag": run.training.plans.switch.lag, "iteration": run.iteration}
    sums().write(json.dumps(told) + "\\n")
    stepped(present)
def attached(): ...
def stepped(present): ...
def enough():
    return True
"""
_TRAIN = """
import numpy
import dynamix_ps.torch as dynamix
FAULT
first_rate = optimizers[0].param_groups[0]["lr"]
run = dynamix.attach(model, optimizers, data)
attached()
try:
    while True:
        for inputs, targets in run.batches(LENGTH):
            before(run.iteration)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            fault(run.rank, run.iteration)
            run.backward(loss)
            rate = optimizers[0].param_groups[0]["lr"]
            for optimizer in optimizers:
                optimizer.step()
            write_down(rate / first_rate)
        if enough():
            break
finally:
    pathlib.Path(f"unwound-{run.rank}").touch()
def score(inputs, targets):
    return {"loss": float(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum"))}
found = run.evaluate(data, score)["loss"]
whole = score(*data.tensors)["loss"] / len(data)
assert abs(found - whole) < 1e-4, f"{found} by all, {whole} by one"
numpy.savez(f"weights-{run.rank}.npz", *[p.detach().numpy() for p in model.parameters()])
run.close()
"""


# With `wire: auto` the wire changes after every ninth iteration.
CHANGES_WIRE = """\
from dataclasses import replace
from worker_hooks.planning import wire_choice
wire_choice.BLOCK = 8
after = {"float32": "int8", "int8": "bf16", "bf16": "float32"}
wire_choice.choose_wire = lambda wires, now, block: (replace(now, wire=after[now.wire]), "it is its turn")
"""


@dataclass(frozen=True, slots=True)
class Story:
    """One job in `folder`.

    It trains so many `iterations`, or so many `epochs`, or one epoch more until `enough()`. `elastic` are further keys
    of this section of the cluster file, `keys` further lines. `hosts`: what the cluster file says of each, and the
    command that enters it; none: one host. `workers` and `servers`: how many, or their list. `script`: trains in place
    of torch what `model` tells, and writes the same files.
    """

    folder: Path
    iterations: int | None
    fault: str
    model: str = PLAIN
    wire: str = "float32"
    min_workers: int = 2
    epochs: int | None = None
    elastic: str = ""
    keys: str = ""
    servers: int | str = 2
    workers: int | str = 4
    comm: str = "byteps"
    hosts: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)
    script: str = ""

    def launch(self) -> Any:
        """Start it: a process with its output in one stream."""
        self.write()
        if self.hosts:
            commands = {name: command for name, (_, command) in self.hosts.items()}
            return launch_by(commands, self.folder, "cluster.yaml")
        return self.launch_again()

    def write(self) -> None:
        """Its cluster file and script."""
        workers = self.workers if isinstance(self.workers, str) else ", ".join(["{batch: 6}"] * self.workers)
        hosts = f"hosts: {{{', '.join(f'{name}: {said}' for name, (said, _) in self.hosts.items())}}}, " * bool(
            self.hosts
        )
        servers = f"wire: {self.wire}, servers: {self.servers}, " if self.comm == "byteps" else ""
        (self.folder / "cluster.yaml").write_text(
            f"name: t\nrun_dir: runs\ncomm: {self.comm}\ncluster: {{{hosts}{servers}workers: [{workers}]}}\n"
            f"batch: {{min: 2, max: 64}}\nwindow: 6\nlr_rule: linear\n"
            f"elastic: {{min_workers: {self.min_workers}{self.elastic}}}\n"
            f"metrics: {{network: 'off', tensorboard: false}}\ncommand: [python, train.py]\n{self.keys}"
        )
        train = (
            (_TOOLS + (self.script or self.model + _TRAIN))
            .replace("FAULT", self.fault)
            .replace("LENGTH", self._length())
        )
        (self.folder / "train.py").write_text(train)

    def launch_again(self, *options: str) -> Any:
        """With options of `dynamix launch`, on this machine."""
        return dynamix("launch", "-c", "cluster.yaml", *options, cwd=self.folder)

    def _length(self) -> str:
        if self.iterations is not None:
            return f"iterations={self.iterations}"
        return "epochs=run.epoch + 1" if self.epochs is None else f"epochs={self.epochs}"

    def sums(self, rank: int) -> list[dict[str, Any]]:
        """What a worker has seen so far: of every sum the `present` ranks, `numbers` of samples, `factor` on the rate,
        `sizes` by rank, and the `lag` from a vote to what it decides.
        """
        file = self.folder / f"sums-{rank}.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def planned(self) -> list[tuple[int, ...]]:
        """The sizes of every decision and plan of the arbitrator, in the order of their versions."""
        lines = JsonLinesTail(self.record.journal_file).read()
        plans = [line for line in lines if line["kind"] in ("adopted", *DECISIONS)]
        return [tuple(line["batch_sizes"]) for line in sorted(plans, key=lambda line: line["version"])]

    def applied(self, rank: int) -> list[tuple[int, ...]]:
        """The sizes of the arbitrator's plans that a worker has trained by."""
        lines = JsonLinesTail(self.record.worker_file(rank)).read()
        return [tuple(line["batch_sizes"]) for line in lines if line["kind"] == "plan_applied"]

    def wires(self) -> list[tuple[int, str]]:
        """The first iteration of each wire after the first one."""
        found = JsonLinesTail(self.record.events_file).read()
        return [(line["iteration"], line["wire"]) for line in found if line["kind"] == "wire_changed"]

    @property
    def record(self) -> RunFolder:
        """What the newest run has written."""
        return RunFolder((self.folder / "runs" / "latest").resolve())

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.record.summary_json.read_text())
        return found

    def assert_nothing_left(self) -> None:
        """No process, segment, socket folder or control group of the newest run."""
        assert_nothing_left(run_id_in(self.record.path.name))

    def weights(self, rank: int) -> list[torch.Tensor]:
        """The last ones of a worker."""
        return [torch.from_numpy(array) for array in np.load(self.folder / f"weights-{rank}.npz").values()]

    def check(self, ranks: list[int], rtol: float | None = None, sums: list[dict[str, Any]] | None = None) -> None:
        """These workers have ended with the same weights: those of one process with the same samples and rates.

        `rtol`: none: as the wire allows. `sums`: all of the job, where the first of `ranks` has not seen all.
        """
        rtol = rtol or TOLERANCE[self.wire]
        first, *others = map(self.weights, ranks)
        assert all(all(map(torch.equal, first, other)) for other in others), "bit for bit"
        apart = 0.0
        for found, expected in zip(first, replayed(self.model, sums or self.sums(ranks[0])), strict=True):
            apart = max(apart, float((found - expected).abs().max()))
            assert torch.allclose(found, expected, rtol=rtol, atol=rtol / 10), apart
        assert self.wire == "float32" or apart > TOLERANCE["float32"], "nothing was rounded"

    def check_epochs(self, rank: int, sums: list[dict[str, Any]] | None = None) -> None:
        """The sums of this worker, or all of the job, have every sample once per epoch."""
        order = [number for one in sums or self.sums(rank) for number in one["numbers"]]
        epochs = [sorted(order[begin : begin + SAMPLES]) for begin in range(0, len(order), SAMPLES)]
        assert epochs == [list(range(SAMPLES))] * (self.epochs or len(epochs))


def trained(story: Story) -> dict[str, Any]:
    """Train to the end, which must be a good one. Returns the summary."""
    ends(story.launch(), 0, limit_s=200)
    story.assert_nothing_left()
    return story.summary()
