"""A folder with names that others have too, such as random.py: roles do not see it, and the script sees its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import assert_nothing_left, cluster_file, dynamix, environment, kill_all, run_id_in
from tests.third_party_policy import write_module

pytestmark = pytest.mark.timeout(120)

NAMES = (
    "random",
    "queue",
    "logging",
    "torch",
    "numpy",
    "grpc",
    "click",
    "yaml",
    "byteps",
    "benchmarks",
    "server_hooks",
)
SCRIPT = """
import json, os, sys
file = f"path-{os.environ.get('DMLC_WORKER_ID', 'plain')}.json"
json.dump(sys.path, open(file, "w"))
if "plain" in file:
    sys.exit()
import torch
torch.manual_seed(0)
import dynamix_ps.torch as dynamix
model = torch.nn.Linear(3, 1)
data = torch.utils.data.TensorDataset(torch.randn(960, 3), torch.randn(960, 1))
run = dynamix.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
first = 0
for x, y in run.batches(epochs=100_000):
    run.backward(torch.nn.functional.mse_loss(model(x), y))
    run.optimizers[0].step()
    if len(x) > (first := first or len(x)):  # the policy has made it grow
        break
"""


@pytest.mark.parametrize("plane", ["gloo", "byteps"])
def test_only_the_script_sees_its_folder(tmp_path: Path, plane: str) -> None:
    folder, scripts = tmp_path / "work", tmp_path / "scripts"
    folder.mkdir()
    scripts.mkdir()
    for number, name in enumerate(NAMES):
        file = folder / f"{name}.py" if number % 2 else folder / name / "__init__.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('taken from the working folder')")
    (scripts / "train.py").write_text(SCRIPT)
    policy = f"policy: {{name: '{write_module(folder)}', options: {{step: 4}}}}\nwindow: 3\n"
    file = cluster_file(folder, policy, workers="[{}, {}]", comm=plane, mode="adapt")
    process = dynamix("launch", "-c", str(file), "--", "python", str(scripts / "train.py"), cwd=folder)
    output, _ = process.communicate(timeout=100)
    try:
        assert process.returncode == 0, output
        assert "working folder" not in output
        assert_nothing_left(run_id_in(output))
    finally:
        kill_all(run_id_in(output), [process])
    assert "policy grow" in output, "the arbitrator has found the policy in the working folder"
    subprocess.run([sys.executable, scripts / "train.py"], cwd=folder, env=environment(), check=True, timeout=60)
    paths = [json.loads((folder / f"path-{who}.json").read_text()) for who in ("0", "1", "plain")]
    assert paths[0] == paths[1] == paths[2]
