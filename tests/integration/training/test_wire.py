"""Whole trainings whose gradients travel in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import cluster_file, dynamix

pytestmark = pytest.mark.timeout(200)

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


def trained(folder: Path, comm: str, wire: str) -> tuple[str, float]:
    """Digest of the weights of all workers, and the loss over all samples."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    workers = f"[{{batch: 24}}, {{batch: 8}}, {{batch: 5}}], wire: {wire}"
    more = "batch: {min: 1}\nseed: 1\nenv: {DYNAMIX_SHARED_MEMORY: '0'}\n"
    file = cluster_file(folder, more, workers, comm)
    process = dynamix("launch", "-c", str(file), "--", "python", "train.py", cwd=folder)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    ends = {tuple(line.split("ends with ")[1].split()) for line in output.splitlines() if "ends with" in line}
    assert output.count("ends with") == 3 and len(ends) == 1, "not the same bits on all workers"
    [(digest, loss)] = ends
    return digest, float(loss)


@pytest.mark.parametrize(("comm", "wires"), [("gloo", ("bf16", "int8")), ("byteps", ("bf16",))])
def test_it_learns_as_with_float32_and_all_workers_have_equal_bits(
    comm: str, wires: tuple[str, ...], tmp_path: Path
) -> None:
    exact, loss = trained(tmp_path / "float32", comm, "float32")
    for wire in wires:
        rounded, other = trained(tmp_path / wire, comm, wire)
        assert rounded != exact, "nothing was rounded"
        assert other == pytest.approx(loss, rel=0.001)
    assert loss < 0.5, "it learns"
