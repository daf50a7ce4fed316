"""The launch plan: which roles start, with which command line and environment."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps import own_process
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import ConfigError
from dynamix_ps.launch.roles.plan import RoleSpec, RunPlace, as_shell, job_roles, plan_roles, role_environment

PLACE = RunPlace(
    run_id="0badcafe",
    token="secret",
    config_file=Path("/r/config.resolved.yaml"),
    run_dir=Path("/r"),
    scratch=Path("/tmp/dynamix-0badcafe-1234"),
    shm_prefix="dynamix_0badcafe_5678_",
    port=20001,
    arbitrator_port=20002,
    cores=2,
)
PYTHON = "/opt/venv/bin/python3"
WEIRD = ("python", "a b.py", "--x=1;2", "$(rm -rf /)", "quote'\"", "new\nline", "*", "", "ü", "-c", "\\", "`id`")


def plan(environ: dict[str, str] | None = None, place: RunPlace = PLACE, **config: object) -> dict[str, RoleSpec]:
    data = {"cluster": {"workers": ({}, {"speed": 0.5})}, "command": ("python", "t.py"), **config}
    specs = plan_roles(Config.model_validate(data), place, environ or {}, PYTHON)
    assert len({spec.name for spec in specs}) == len(specs)
    return {spec.name: spec for spec in specs}


def test_every_role_gets_what_byteps_needs() -> None:
    specs = plan(cluster={"workers": ({}, {}), "servers": 2})
    assert list(specs) == ["scheduler", "server-0", "server-1", "worker-0", "worker-1"]
    for spec in specs.values():
        expected = {
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "2",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": "20001",
            "DMLC_NODE_HOST": "127.0.0.1",
            "BYTEPS_NUMA_ON": "0",
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "BYTEPS_LOG_LEVEL": "WARNING",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "PYTHONUNBUFFERED": "1",
            "DYNAMIX_CONFIG": "/r/config.resolved.yaml",
            "DYNAMIX_RUN_DIR": "/r",
            "DYNAMIX_RUN_ID": "0badcafe",
            "DYNAMIX_ARBITRATOR": "127.0.0.1:20002",
            "DYNAMIX_TOKEN": "secret",
            "DYNAMIX_TLS": "off",
        }
        assert expected.items() <= spec.env.items()
        assert spec.env["PATH"].startswith("/opt/venv/bin:")
        assert "PYTHONPATH" not in spec.env, "only the script sees its folder, as under plain python"
    assert [specs[name].env["DMLC_ROLE"] for name in specs] == ["scheduler", "server", "server", "worker", "worker"]
    assert [spec.env.get("DMLC_SERVER_ID") for spec in specs.values()] == [None, "0", "1", None, None]
    launcher = own_process.command("dynamix_ps.cli.bpslaunch", python=PYTHON)
    assert specs["scheduler"].argv == specs["server-1"].argv == launcher
    assert specs["worker-1"].argv == (*launcher, "python", "t.py")


def test_servers_are_placed_beside_workers_or_on_hosts_of_their_own() -> None:
    servers = ({"host": "worker-1"}, {}, {"host": "worker-0"})
    specs = plan(cluster={"workers": ({}, {}), "servers": servers})
    assert {name: spec.beside for name, spec in specs.items()} == {
        "scheduler": None,
        "server-0": "worker-1",
        "server-1": None,
        "server-2": "worker-0",
        "worker-0": None,
        "worker-1": None,
    }
    assert {spec.env["DMLC_NUM_SERVER"] for spec in specs.values()} == {"3"}
    automatic = plan(cluster={"workers": ({}, {}), "servers": "auto"})
    assert [name for name in automatic if name.startswith("server-")] == ["server-0"]
    assert {spec.env["DMLC_NUM_SERVER"] for spec in automatic.values()} == {"1"}


def test_an_arbitrator_of_its_own_is_where_the_roles_meet() -> None:
    assert plan(comm="gloo")["arbitrator"].beside == "worker-0"


@pytest.mark.parametrize(("emulated", "who"), [(False, "workers"), (True, "server")])
def test_the_sum_on_a_host_leaves_emulated_speeds_as_they_are(emulated: bool, who: str) -> None:
    place = dataclasses.replace(PLACE, speeds_emulated=emulated)
    assert {spec.env["DYNAMIX_HOST_SUM"] for spec in plan(place=place).values()} == {who}
    assert all("DYNAMIX_HOST_SUM" not in spec.env for spec in plan(place=place, comm="gloo").values())


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
@pytest.mark.parametrize("wire", ["float32", "bf16", "int8", "auto"])
def test_workers_know_how_gradients_travel(comm: str, wire: str) -> None:
    specs = plan(comm=comm, cluster={"workers": ({}, {}), "wire": wire})
    assert {name: spec.env["DYNAMIX_WIRE"] for name, spec in specs.items() if "DYNAMIX_WIRE" in spec.env} == {
        "worker-0": wire,
        "worker-1": wire,
    }


def test_servers_too_know_whether_shared_memory_is_off() -> None:
    specs = plan(env={"DYNAMIX_SHARED_MEMORY": "0"})
    assert {spec.env.get("DYNAMIX_SHARED_MEMORY") for spec in specs.values()} == {"0"}
    inherited = role_environment(plan()["server-0"], {"DYNAMIX_SHARED_MEMORY": "0"})
    assert inherited["DYNAMIX_SHARED_MEMORY"] == "0"


def test_a_ring_has_no_scheduler_and_no_server_but_the_arbitrator() -> None:
    specs = plan(comm="gloo")
    assert list(specs) == ["arbitrator", "worker-0", "worker-1"]
    for spec in specs.values():
        assert (spec.env["DMLC_NUM_SERVER"], spec.env["DMLC_PS_ROOT_PORT"]) == ("0", "20001")
        assert "BYTEPS_FORCE_DISTRIBUTED" not in spec.env


def test_workers_of_one_machine_share_neither_sockets_nor_segments() -> None:
    specs = plan()
    one, other = specs["worker-0"], specs["worker-1"]
    assert (one.env["DMLC_WORKER_ID"], other.env["DMLC_WORKER_ID"]) == ("0", "1")
    assert (one.rank, other.rank) == (0, 1)
    assert one.env["BYTEPS_SOCKET_PATH"] != other.env["BYTEPS_SOCKET_PATH"]
    prefixes = [one.env["BYTEPS_SHM_PREFIX"], other.env["BYTEPS_SHM_PREFIX"]]
    assert prefixes == ["dynamix_0badcafe_5678_0_", "dynamix_0badcafe_5678_1_"]
    assert all(len(spec.env["BYTEPS_SOCKET_PATH"]) + len("/socket_send_0") < 108 for spec in (one, other))


def test_every_role_knows_its_name_also_inside_of_another_run() -> None:
    for specs in (plan(cluster={"workers": ({}, {}), "servers": 2}), plan(comm="local", cluster={"workers": ({},)})):
        for name, spec in specs.items():
            environment = role_environment(spec, {"DYNAMIX_ROLE_NAME": "worker-9"})
            assert environment["DYNAMIX_ROLE_NAME"] == spec.env["DYNAMIX_ROLE_NAME"] == name


def test_a_single_local_worker_has_only_an_arbitrator_beside_it() -> None:
    cluster = {"workers": ({},)}
    assert list(plan(comm="local", cluster=cluster)) == ["arbitrator", "worker-0"]
    assert list(plan(comm="local", cluster=cluster, mode="off")) == ["worker-0"]
    watch = own_process.command("server_hooks.arbitrator_watch", python=PYTHON)
    assert plan(comm="local", cluster=cluster)["arbitrator"].argv == watch
    assert "BYTEPS_FORCE_DISTRIBUTED" not in plan(comm="local", cluster=cluster)["worker-0"].env


def test_mode_off_has_no_arbitrator_address() -> None:
    assert all(
        "DYNAMIX_ARBITRATOR" not in spec.env and "DYNAMIX_TLS" not in spec.env for spec in plan(mode="off").values()
    )


def test_where_workers_choose_their_own_sizes_nothing_is_started_that_decides() -> None:
    own = {"policy": {"name": "stigmergy"}}
    assert list(plan(comm="gloo", **own)) == ["worker-0", "worker-1"]
    assert list(plan(comm="gloo", mode="observe")) == ["arbitrator", "worker-0", "worker-1"]
    assert all("DYNAMIX_ARBITRATOR" not in spec.env for spec in plan(**own).values())
    members = {**own, "elastic": {"min_workers": 1}}
    assert list(plan(comm="gloo", **members)) == ["arbitrator", "worker-0", "worker-1"], "who is there, it decides"
    assert all("DYNAMIX_ARBITRATOR" in spec.env for spec in plan(**members).values())


def test_tuning_variables_of_the_user_win_and_those_of_the_file_win_over_them_for_workers() -> None:
    environ = {"OMP_NUM_THREADS": "7", "BYTEPS_LOG_LEVEL": "INFO", "BYTEPS_NUMA_ON": "1"}
    specs = plan(environ, env={"OMP_NUM_THREADS": "3", "MINE": "x y"})
    assert specs["worker-0"].env["OMP_NUM_THREADS"] == "3"
    assert specs["worker-0"].env["MINE"] == "x y"
    assert "MINE" not in specs["server-0"].env
    assert plan(environ)["worker-1"].env["OMP_NUM_THREADS"] == "7"
    assert specs["server-0"].env["BYTEPS_LOG_LEVEL"] == "INFO"
    assert specs["server-0"].env["BYTEPS_NUMA_ON"] == "1"


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (3, "1"), (8, "4")])
def test_the_cores_are_shared_out_among_the_workers_threads(cores: int, threads: str) -> None:
    specs = plan(place=dataclasses.replace(PLACE, cores=cores))
    assert specs["worker-0"].env["OMP_NUM_THREADS"] == threads


def test_gpus_are_dealt_out_one_per_worker() -> None:
    specs = plan({"NVIDIA_VISIBLE_DEVICES": "3,5"})
    assert [specs[f"worker-{rank}"].env["NVIDIA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["3", "5"]
    assert plan()["worker-1"].env["NVIDIA_VISIBLE_DEVICES"] == "0"


def test_cuda_shows_each_worker_its_own_gpu_unless_the_cluster_file_says_what_it_shows() -> None:
    place = dataclasses.replace(PLACE, gpus=2)
    specs = plan(place=place)
    assert [specs[f"worker-{rank}"].env["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in specs["server-0"].env
    specs = plan(place=place, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert specs["worker-0"].env["CUDA_VISIBLE_DEVICES"] == "1"


def test_slow_down_and_checkpoint_reach_the_workers_only() -> None:
    specs = plan(place=dataclasses.replace(PLACE, slowdowns=(1.0, 2.0), resume=Path("/c/last.pt")))
    assert "DYNAMIX_SLOWDOWN" not in specs["worker-0"].env
    assert specs["worker-1"].env["DYNAMIX_SLOWDOWN"] == "2"
    assert [name for name, spec in specs.items() if "DYNAMIX_RESUME" in spec.env] == ["worker-0", "worker-1"]


def test_nothing_of_an_outer_run_leaks_into_a_role() -> None:
    outer = {"DYNAMIX_RESUME": "/old.pt", "DYNAMIX_RUN_ID": "old", "DYNAMIX_SLOWDOWN": "9", "HOME": "/root"}
    full = role_environment(plan(outer, mode="off")["worker-0"], {**outer, "DYNAMIX_ARBITRATOR": "old:1"})
    assert "DYNAMIX_RESUME" not in full
    assert "DYNAMIX_SLOWDOWN" not in full
    assert "DYNAMIX_ARBITRATOR" not in full
    assert full["DYNAMIX_RUN_ID"] == "0badcafe"
    assert full["HOME"] == "/root"


INNER = plan(place=dataclasses.replace(PLACE, slowdowns=(2.0, 2.0), resume=Path("/c.pt"), probe="none"))
# What the roles get that is neither a search path nor a tuning variable, which a user may set.
SET_PER_ROLE = sorted(
    {name for spec in INNER.values() for name in spec.env}
    - {"PATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"}
    - {"BYTEPS_NUMA_ON", "BYTEPS_SERVER_ENGINE_THREAD", "BYTEPS_LOG_LEVEL"}
)


@pytest.mark.parametrize("name", SET_PER_ROLE)
def test_what_the_launcher_sets_per_role_is_refused_in_a_cluster_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"cluster: {{workers: [{{}}, {{}}]}}\nenv:\n  {name}: x\n")
    with pytest.raises(ConfigError, match=rf"c\.yaml:3: env\.{name}: belongs to the launcher.*remove it \(got x\)"):
        load_config(file)


def test_no_variable_of_another_run_reaches_a_role() -> None:
    outer = {**{name: "outer" for spec in INNER.values() for name in spec.env}, "HOME": "/root"}
    for specs in (plan(), plan(comm="gloo", mode="off"), plan(comm="local", cluster={"workers": ({},)})):
        for spec in specs.values():
            full = role_environment(spec, outer)
            kept = {name for name in SET_PER_ROLE if full.get(name) == "outer"}
            assert kept <= {"NVIDIA_VISIBLE_DEVICES"}, spec.name  # the machine's, dealt out to the workers
            assert full["HOME"] == "/root"


def test_weird_arguments_are_passed_on_one_by_one() -> None:
    assert plan(command=WEIRD)["worker-0"].argv[3:] == WEIRD


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_the_printed_line_is_read_by_a_shell_as_the_very_same_words(command: list[str]) -> None:
    spec = RoleSpec("worker-0", "worker", tuple(command), {"A": "x y;'$(z)\n", "B": ""})
    assert shlex.split(as_shell(spec)) == ["A=x y;'$(z)\n", "B=", *command]


def test_every_role_is_told_of_the_network_probe_and_of_no_other_runs() -> None:
    inherited = {"DYNAMIX_PROBE": "/tmp/dynamix-another/probe.sock"}
    for probe in ("/run/dynamix/probe.sock", "none"):
        specs = plan(inherited, dataclasses.replace(PLACE, probe=probe))
        assert len(specs) == 4
        assert {role_environment(spec, inherited)["DYNAMIX_PROBE"] for spec in specs.values()} == {probe}
    for spec in plan(inherited).values():
        assert "DYNAMIX_PROBE" not in role_environment(spec, inherited)


HOSTS = {
    "a": {"address": "10.0.0.1", "slots": 2, "devices": (4, 6)},
    "b": {"address": "node-b", "slots": 1},
    "s": {"slots": 0},
}


def plan_on(host: str, environ: dict[str, str] | None = None, **config: object) -> dict[str, RoleSpec]:
    cluster = {"hosts": HOSTS, "workers": ({}, {}, {}), "servers": ({"host": "worker-2"}, {}), "host": "s"}
    place = dataclasses.replace(PLACE, host=host, addresses={"s": "10.0.0.9", "b": "10.0.0.2"}, cores=4)
    place = dataclasses.replace(place, certificates=Path("/tmp/certificates"))
    return plan(environ, place, **{"cluster": cluster, **config})


def test_each_host_gets_its_own_roles_and_all_meet_at_the_home() -> None:
    hosts = {name: plan_on(name) for name in HOSTS}
    assert {name: list(specs) for name, specs in hosts.items()} == {
        "a": ["worker-0", "worker-1"],
        "b": ["server-0", "worker-2"],
        "s": ["scheduler", "server-1"],
    }
    for name, own in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("s", "10.0.0.9")):
        for spec in hosts[name].values():
            assert spec.env["DMLC_PS_ROOT_URI"] == "10.0.0.9"
            assert spec.env["DYNAMIX_ARBITRATOR"] == "10.0.0.9:20002"
            assert spec.env["DYNAMIX_TLS"] == "/tmp/certificates"
            assert spec.env["DMLC_NODE_HOST"] == own
            assert spec.env["DYNAMIX_HOST"] == name
            assert (spec.env["DMLC_NUM_WORKER"], spec.env["DMLC_NUM_SERVER"]) == ("3", "2")


def test_devices_and_cores_are_those_of_the_host() -> None:
    a, b = plan_on("a"), plan_on("b", {"NVIDIA_VISIBLE_DEVICES": "7,8,9"})
    assert [spec.env["NVIDIA_VISIBLE_DEVICES"] for spec in a.values()] == ["4", "6"]
    assert b["worker-2"].env["NVIDIA_VISIBLE_DEVICES"] == "7"
    assert [a["worker-0"].env["OMP_NUM_THREADS"], b["worker-2"].env["OMP_NUM_THREADS"]] == ["2", "4"]


def test_all_roles_of_a_job_are_known_without_its_places() -> None:
    config = Config.model_validate({"cluster": {"hosts": HOSTS, "workers": ({}, {}, {})}, "comm": "gloo"})
    assert [(role.name, role.host) for role in job_roles(config)] == [
        ("arbitrator", "a"),
        ("worker-0", "a"),
        ("worker-1", "a"),
        ("worker-2", "b"),
    ]
