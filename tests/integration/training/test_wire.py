"""Whole trainings whose gradients travel in fewer bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import cluster_file, dynamix

pytestmark = pytest.mark.timeout(200)
CHANGED = "0:float32 21:int8 42:float32 63:bf16 84:int8 104:float32"
CHOSEN = "float32 at the end (5 changes, float32 from iteration 104: the loss rises; float32 stays for the rest"

TRAIN = """\
import hashlib
import torch
import dynamix_ps.torch as dynamix
torch.manual_seed(0)
inputs = torch.randn(1200, 20)
data = torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(1))
model = torch.nn.Sequential(torch.nn.Linear(20, 800), torch.nn.Tanh(), torch.nn.Linear(800, 4))
loss_of = torch.nn.functional.cross_entropy
run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), data)
for inputs, targets in run.batches(iterations=150):
    run.optimizers[0].zero_grad()
    run.backward(loss_of(model(inputs), targets))
    run.optimizers[0].step()
run.close()
digest = hashlib.sha256(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes()).hexdigest()
print("ends with", digest, loss_of(model(data.tensors[0]), data.tensors[1]).item())
"""


# All gradients of an iteration tell how they travelled.
PROPOSALS = """\
from dataclasses import replace
from worker_hooks.planning import wire_choice
wire_choice.BLOCK = 20
proposals, changes = iter(["int8", "float32", "bf16", "int8"]), []
wire_choice.choose_wire = lambda wires, now, block: (replace(now, wire=next(proposals)), "it was proposed")
see = wire_choice.WireChoice.see
def seen(choice, lasted_s, exposed_s, batch, loss, rolled_back):
    return see(choice, lasted_s, exposed_s, batch, loss * (5 if run.iteration > 100 else 1), rolled_back)
wire_choice.WireChoice.see = seen
def look(gradient):
    values = len(gradient.abs().unique()) / gradient.numel()
    short = (gradient == gradient.bfloat16()).float().mean()  # not all: a piece with other values travels as it is
    wire = "bf16" if short > 0.5 else "int8" if values < 0.7 else "float32"
    if not changes or not changes[-1].endswith(wire):
        changes.append(f"{run.iteration}:{wire}")
"""


def trained(folder: Path, comm: str, wire: str) -> tuple[str, float]:
    """Digest of the weights of all workers, and the loss over all samples.

    With `auto`, all change to the proposed wires at the same iterations, and go back when the loss rises.
    """
    folder.mkdir()
    script = TRAIN
    if wire == "auto":
        script = PROPOSALS + TRAIN.replace("print(", 'print("changed", *changes)\nprint(')
        script = script.replace(
            "    run.optimizers[0].step()", "    look(model[0].weight.grad)\n    run.optimizers[0].step()"
        )
    (folder / "train.py").write_text(script)
    workers = f"[{{batch: 24}}, {{batch: 8}}, {{batch: 5}}], wire: {wire}"
    more = "batch: {min: 1}\nseed: 1\nenv: {DYNAMIX_SHARED_MEMORY: '0'}\npolicy: {name: static}\n"
    file = cluster_file(folder, more, workers, comm, "adapt" if wire == "auto" else "'off'")
    process = dynamix("launch", "-c", str(file), "--", "python", "train.py", cwd=folder)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    ends = {tuple(line.split("ends with ")[1].split()) for line in output.splitlines() if "ends with" in line}
    assert output.count("ends with") == 3 and len(ends) == 1, "not the same bits on all workers"
    if wire == "auto":
        assert {line.partition("changed ")[2] for line in output.splitlines() if "changed " in line} == {CHANGED}
        summary = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
        assert summary["wire"].startswith(CHOSEN)
    [(digest, loss)] = ends
    return digest, float(loss)


@pytest.mark.parametrize(("comm", "wires"), [("gloo", ("bf16", "int8", "auto")), ("byteps", ("bf16", "auto"))])
def test_it_learns_as_with_float32_and_all_workers_have_equal_bits(
    comm: str, wires: tuple[str, ...], tmp_path: Path
) -> None:
    exact, loss = trained(tmp_path / "float32", comm, "float32")
    for wire in wires:
        rounded, other = trained(tmp_path / wire, comm, wire)
        assert rounded != exact, "nothing was rounded"
        assert other == pytest.approx(loss, rel=0.001)
    assert loss < 0.5, "it learns"
