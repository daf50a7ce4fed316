"""The variables that dynamix-bpslaunch reads, and its messages for wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.config.role_environment import RoleSettings, read_role
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.host.affinity import core_sets, numa_nodes

WORKER = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_WORKER_ID": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "1234",
}


def without(*names: str, **changes: str) -> dict[str, str]:
    return {name: value for name, value in {**WORKER, **changes}.items() if name not in names}


def test_a_complete_environment_is_read() -> None:
    assert read_role({**WORKER, "NVIDIA_VISIBLE_DEVICES": "0,1"}) == RoleSettings(
        "worker", workers=2, worker_id=1, local_size=2, distributed=True, root_host="10.0.0.1", root_port=1234
    )
    assert read_role(WORKER).root == "10.0.0.1:1234"
    assert read_role({**WORKER, "DMLC_PS_ROOT_URI": "::1"}).root == "[::1]:1234"
    assert read_role({**WORKER, "DMLC_ROLE": "Server"}).role == "server"


@pytest.mark.parametrize("name", sorted(WORKER))
def test_every_missing_variable_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is not set; expected"):
        read_role(without(name))


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read_role(
            {"DMLC_ROLE": "boss", "DMLC_NUM_WORKER": "two", "DMLC_NUM_SERVER": "-1", "DMLC_PS_ROOT_PORT": "99999"}
            | {"DYNAMIX_WIRE": "bf8"}
        )
    assert str(caught.value).splitlines() == [
        "DMLC_ROLE is 'boss'; expected one of worker, server, scheduler",
        "DMLC_NUM_WORKER is 'two'; expected an integer from 1 to 100000",
        "DMLC_NUM_SERVER is '-1'; expected an integer from 1 to 100000",
        "DMLC_PS_ROOT_PORT is '99999'; expected an integer from 1 to 65535",
        "DMLC_PS_ROOT_URI is not set; expected the scheduler's host name or address",
        "DYNAMIX_WIRE is 'bf8'; expected one of float32, bf16, int8, auto",
    ]


def test_a_worker_of_a_ring_has_no_server() -> None:
    assert read_role({**WORKER, "DMLC_NUM_SERVER": "0"}).distributed
    with pytest.raises(UsageError, match="DMLC_NUM_SERVER is '0'; expected an integer from 1"):
        read_role({**WORKER, "DMLC_NUM_SERVER": "0", "DMLC_ROLE": "scheduler"})


def test_a_worker_id_must_be_below_the_number_of_workers() -> None:
    with pytest.raises(UsageError, match="DMLC_WORKER_ID is '2'; expected an integer from 0 to 1"):
        read_role(without(DMLC_WORKER_ID="2"))


def test_one_worker_alone_needs_no_cluster_unless_forced() -> None:
    alone = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}
    assert not read_role(alone).distributed
    with pytest.raises(UsageError, match="DMLC_PS_ROOT_URI"):
        read_role({**alone, "BYTEPS_FORCE_DISTRIBUTED": "1"})


@given(st.dictionaries(st.sampled_from(sorted([*WORKER, "NVIDIA_VISIBLE_DEVICES"])), st.text(max_size=12)))
def test_any_environment_is_read_or_refused(environ: dict[str, str]) -> None:
    try:
        settings = read_role({**WORKER, **environ})
    except UsageError:
        return
    assert 0 <= settings.worker_id < max(settings.workers, 1)
    assert settings.local_size >= 1


def test_cores_are_bound_as_bpslaunch_writes_them() -> None:
    environ = {"BYTEPS_VISIBLE_CPU_CORES": "1,4-5:20-22", "BYTEPS_CPU_BLACKLIST": "21"}
    assert core_sets(environ, 2, [[0]]) == [{1, 4, 5}, {20, 22}]


def test_without_a_list_neighbouring_cores_are_shared_out_evenly() -> None:
    assert core_sets({}, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert core_sets({"BYTEPS_CPU_BLACKLIST": "-1"}, 3, [[0, 1, 2, 3]]) == [{0}, {1}, {2}]
    assert core_sets({}, 4, [[0, 1]]) == [set(), set(), set(), set()]


@pytest.mark.parametrize("text", ["x", "1-", "1-x", "-3", "1,,a"])
def test_an_unreadable_list_of_cores_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="BYTEPS_VISIBLE_CPU_CORES: cannot read"):
        core_sets({"BYTEPS_VISIBLE_CPU_CORES": text}, 1, [[0]])


def test_a_list_for_too_few_processes_is_refused() -> None:
    with pytest.raises(UsageError, match="names cores for 1 process"):
        core_sets({"BYTEPS_VISIBLE_CPU_CORES": "0-3"}, 2, [[0]])


def test_a_machine_without_visible_nodes_is_one_node(tmp_path: Path) -> None:
    assert len(numa_nodes(tmp_path)) == 1
    assert numa_nodes(tmp_path)[0]
