"""The nodes of a Slurm job, from the variables that Slurm sets."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.targets.slurm.nodes import SlurmNode, expand_counts, expand_nodes, job_nodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", "login"),
        ("n1,n2", "n1 n2"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[01-03,07],login", "n01 n02 n03 n07 login"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[098-101]x", "n098x n099x n100x n101x"),
        ("rack[1-2]n[0,4-5]", "rack1n0 rack1n4 rack1n5 rack2n0 rack2n4 rack2n5"),
        ("gpu-node[3],a-b.c[2,1]", "gpu-node3 a-b.c2 a-b.c1"),
    ],
)
def test_a_list_of_nodes(text: str, names: str) -> None:
    assert list(expand_nodes(text)) == names.split()


@pytest.mark.parametrize(
    "text",
    ["", "n[1-3", "n1]", "n[]", "n[3-1]", "n[1-]", "n[a-b]", "n[000x133]", ",n1", "n1,,n2", "n[[1]]", "n[1-99999999]"],
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(EnvironmentNotReady, match=f"^SLURM_JOB_NODELIST is {re.escape(repr(text))}[;:] "):
        list(expand_nodes(text, "SLURM_JOB_NODELIST"))


@pytest.mark.parametrize(("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])])
def test_numbers_per_node(text: str, counts: list[int]) -> None:
    assert list(expand_counts(text)) == counts


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "2,", "-1"])
def test_what_are_no_numbers_per_node(text: str) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"^SLURM_TASKS_PER_NODE is "):
        list(expand_counts(text, "SLURM_TASKS_PER_NODE"))


JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2],m", "SLURM_TASKS_PER_NODE": "8(x2),4"}
HETEROGENEOUS = {
    **JOB,
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_NTASKS_HET_GROUP_0": "1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "4(x2)",
}


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        ({}, ()),
        ({"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_NODELIST": "n1"}, ()),
        (JOB, (SlurmNode("n1"), SlurmNode("n2"), SlurmNode("m"))),
        ({**JOB, "SLURM_NTASKS": "20"}, (SlurmNode("n1", 8), SlurmNode("n2", 8), SlurmNode("m", 4))),
        ({**JOB, "SLURM_NTASKS_PER_NODE": "8"}, (SlurmNode("n1", 8), SlurmNode("n2", 8), SlurmNode("m", 4))),
        (HETEROGENEOUS, (SlurmNode("n1", 1, 0), SlurmNode("n2", None, 1), SlurmNode("n3", None, 1))),
    ],
)
def test_the_nodes_of_a_job(environ: Mapping[str, str], nodes: tuple[SlurmNode, ...]) -> None:
    """What Slurm counts by itself, where nobody asked for a number of tasks, is none."""
    assert job_nodes(environ) == nodes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST is ''; expected nodes as Slurm writes them"),
        ({"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}, "SLURM_JOB_NODELIST names 3 nodes and SLURM_TASKS_PE"),
        ({"SLURM_JOB_NODELIST": "n[1-2000]"}, "the Slurm job has 2000 nodes; at most 1024 can take part"),
        (
            {**HETEROGENEOUS, "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]"},
            "node n1 is in two components of the Slurm job; ask for nodes that differ",
        ),
    ],
)
def test_variables_that_do_not_fit(changes: Mapping[str, str], reason: str) -> None:
    with pytest.raises(EnvironmentNotReady, match=f"^{re.escape(reason)}"):
        job_nodes({**JOB, **changes})
