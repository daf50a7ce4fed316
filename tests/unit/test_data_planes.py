"""The data planes: one table describes them, and no other module compares their names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import dynamix_ps
from dynamix_ps.comm import open_comm
from dynamix_ps.comm.local import LocalComm
from dynamix_ps.config.rules import findings
from dynamix_ps.config.schema import Config
from dynamix_ps.data_planes import DATA_PLANES, DataPlane
from dynamix_ps.launch.roles.plan import RunPlace, plan_roles

ROOT = Path(dynamix_ps.__file__).parents[1]
PLACE = RunPlace("0badcafe", "secret", Path("/r/c.yaml"), Path("/r"), Path("/tmp/x"), "shm_", 20001, 20002, 2)


class PigeonComm(LocalComm):
    name = "pigeon"


@pytest.fixture
def pigeon(monkeypatch: pytest.MonkeyPatch) -> DataPlane:
    """A data plane that nobody but the table knows: servers, and at most three workers."""
    plane = DataPlane("pigeon", {"torch": f"{__name__}:PigeonComm"}, has_servers=True, is_ring=True, most_workers=3)
    monkeypatch.setitem(DATA_PLANES, "pigeon", plane)
    return plane


def config(workers: int) -> Config:
    data = {"cluster": {"workers": ({},) * workers, "servers": 2}, "command": ("python", "t.py")}
    return Config.model_validate(data).model_copy(update={"comm": "pigeon"})


def test_a_new_data_plane_needs_only_its_line_in_the_table(pigeon: DataPlane) -> None:
    specs = plan_roles(config(2), PLACE, {}, "python3")
    assert [spec.name for spec in specs] == ["scheduler", "server-0", "server-1", "worker-0", "worker-1"]
    assert {spec.env["DMLC_NUM_SERVER"] for spec in specs} == {"2"}
    assert config(2).data_plane.home_role == "scheduler"
    assert isinstance(open_comm("pigeon"), PigeonComm)
    assert [(found.path, found.message) for found in findings(config(4))] == [
        (("comm",), "is for at most 3 workers, the cluster has 4; use byteps")
    ]
    assert not list(findings(config(3)))


def test_the_cluster_file_knows_the_names_of_the_table() -> None:
    for name in DATA_PLANES:
        assert Config.model_validate({"comm": name, "cluster": {"workers": ({},)}}).data_plane.name == name
    with pytest.raises(ValidationError, match="'byteps', 'gloo' or 'local'"):
        Config.model_validate({"comm": "pigeon", "cluster": {"workers": ({},)}})


def test_every_implementation_is_a_comm_of_that_name() -> None:
    for plane in DATA_PLANES.values():
        for framework in plane.implementations:
            assert open_comm(plane.name, framework).name == plane.name


def test_the_table_and_the_cluster_file_import_no_framework() -> None:
    code = (
        "import sys, dynamix_ps.config.load, dynamix_ps.data_planes\n"
        "print(*sorted({'torch', 'byteps', 'mxnet'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_nothing_compares_the_name_of_a_data_plane() -> None:
    found = []
    for package in ("dynamix_ps", "server_hooks", "worker_hooks", "benchmarks"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Compare, ast.MatchValue)):
                    words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                    if words & set(DATA_PLANES):
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert found == []
