"""The cluster file: all errors at once, each with its line; any input gives a Config or a ConfigError."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dynamix_ps.config.load import check_rules, dump_config, load_config, load_recorded_config
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import MAX_WAIT_S, Cluster, Config, PolicySection, Ppo, Timeouts, WorkerSection
from dynamix_ps.config.yaml_lines import MAX_BYTES
from dynamix_ps.errors import ConfigError

MINIMAL = "cluster: {workers: [{}, {}]}\n"


def errors_of(tmp_path: Path, content: str | bytes) -> list[str]:
    file = tmp_path / "c.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


def load(tmp_path: Path, content: str) -> Config:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    return load_config(file)


def test_everything_wrong_is_reported_at_once_in_line_order(tmp_path: Path) -> None:
    found = errors_of(
        tmp_path,
        """\
name: yes
widow: 5
batch: {min: 64, max: 32}
comm: bytesp
window: "64"
window: 3
cluster:
  port: 99999
  workers:
    - batch: 16
      speed: 0
    - {batch: 64.0, sped: 1}
    - 3
timeouts:
  rpc_s: 10
  lease_s: 5
policy:
  name: static
  sizes: [64, 64]
env:
  DMLC_ROLE: "x"
""",
    )
    assert found == [
        "1: name: must be text; put it in quotes (got yes)",
        "2: widow: unknown key; did you mean 'window'?",
        "3: batch.min: must not exceed batch.max = 32 (got 64)",
        "4: comm: must be one of byteps, gloo, local; did you mean 'byteps'? (got 'bytesp')",
        "5: window: must be an integer (got '64')",
        "6: window: duplicate key, first set on line 5",
        "8: cluster.port: must be at most 65535 (got 99999)",
        "11: cluster.workers[0].speed: must be at least 0.01 (got 0)",
        "12: cluster.workers[1].batch: must be an integer (got 64.0)",
        "12: cluster.workers[1].sped: unknown key; did you mean 'speed'?",
        "13: cluster.workers[2]: must be a mapping of keys to values (got 3)",
        "16: timeouts.lease_s: must exceed rpc_s = 10 (got 5.0)",
        "19: policy.sizes: needs one size per worker, 3 in all (got [64, 64])",
        "21: env.DMLC_ROLE: belongs to the launcher, which sets it where it is needed; remove it (got x)",
    ]


@pytest.mark.parametrize(
    ("yaml_text", "line", "part"),
    [
        ("", 1, "file is empty"),
        ("# only a comment\n", 1, "file is empty"),
        ("- 1\n", 1, "must be a mapping"),
        ("just words\n", 1, "must be a mapping"),
        ("seed: 1\n", 1, "cluster: is required"),
        ("cluster:\n", 1, "cluster: must be a mapping of keys to values (got nothing)"),
        ("cluster:\n  workers: []\n", 2, "cluster.workers: must have at least 1 item"),
        ("cluster:\n  workers:\n", 2, "cluster.workers: must be a list (got nothing)"),
        ("cluster: {workers: [{}]}\nseed: [1\n", 3, "not valid YAML"),
        ("cluster: {workers: [{}]}\n\tseed: 1\n", 2, "\\t"),
        (MINIMAL + "---\nseed: 1\n", 2, "another document"),
        (MINIMAL + "<<: {seed: 1}\n", 2, "merge keys"),
        (MINIMAL + "? {a: b}\n: c\n", 2, "a key must be a plain word"),
        (MINIMAL + "seed: !!python/object/apply:os.system [true]\n", 2, "tag !!python/object/apply:os.system"),
        (MINIMAL + "name: !mine x\n", 2, "tag !mine is not supported"),
        (MINIMAL + 'name: "a\\0b"\n', 2, "NUL"),
        (MINIMAL + 'name: "a\\ud800b"\n', 2, "surrogate"),
        (MINIMAL + 'name: "\\UFFFFFFFF"\n', 1, "not valid YAML"),
        (MINIMAL + "name: a\x01b\n", 2, "'\\x01' is not allowed"),
        (MINIMAL + "name: a/b\n", 2, "name: must match"),
        (MINIMAL + f"seed: {'9' * 5000}\n", 2, "too large"),
        (MINIMAL + "seed: -1\n", 2, "seed: must be at least 0 (got -1)"),
        (MINIMAL + "window: 0\n", 2, "window: must be greater than 0"),
        (MINIMAL + "window: 010\n", 2, "window: must be an integer (got 010)"),
        (MINIMAL + "window: 22:22\n", 2, "window: must be an integer (got '22:22')"),
        (MINIMAL + "window: true\n", 2, "window: must be an integer (got true)"),
        (MINIMAL + "target_accuracy: .nan\n", 2, "target_accuracy: must be a finite number (got .nan)"),
        (MINIMAL + "policy: {name: ppo, ppo: {learn: 1}}\n", 2, "policy.ppo.learn: must be true or false (got 1)"),
        (MINIMAL + "policy: {name: ppo, ppo: {entropy: .inf}}\n", 2, "policy.ppo.entropy: must be a finite number"),
        (MINIMAL + "command: python train.py\n", 2, "command: must be a list (got 'python train.py')"),
        (MINIMAL + "command: [python, 3]\n", 2, "command[1]: must be text; put it in quotes (got 3)"),
        (MINIMAL + "env: {A: 1}\n", 2, "env.A: must be text; put it in quotes (got 1)"),
        (MINIMAL + "env: {'A B': x}\n", 2, "no name of an environment variable"),
        (MINIMAL + "env: {DYNAMIX_TOKEN: x}\n", 2, "env.DYNAMIX_TOKEN: belongs to the launcher"),
        (MINIMAL + "comm: local\n", 2, "comm: is for one worker, the cluster has 2"),
        (MINIMAL + "prefetch: 20\n", 2, "prefetch: must be below window = 20"),
        ("cluster: {workers: [{}]}\nlr_rule: adascale\n", 2, "lr_rule: needs two workers or more"),
        (
            MINIMAL + "lr: script\nlr_rule: sqrt\n",
            3,
            "lr_rule: has no effect with lr: script; remove it, or use lr: fol",
        ),
        (MINIMAL + "policy: {name: stigmergy}\nmode: observe\n", 3, "mode: has nobody that could decide beside"),
        (
            MINIMAL + "policy: {name: stigmergy, stigmergy: {evaporation: 0}}\n",
            2,
            "policy.stigmergy.evaporation: must be greater than 0.0 (got 0)",
        ),
        (MINIMAL + "policy: {name: stigmergy, stigmergy: {calming: 1.5}}\n", 2, "policy.stigmergy.calming: must be at"),
        (MINIMAL + "policy: {name: stigmergy, stigmergy: {alarm: 101}}\n", 2, "policy.stigmergy.alarm: must be at mo"),
        (MINIMAL + "policy: {stigmergy: {}}\n", 2, "policy.stigmergy: is only for policy.name: stigmergy; remove it"),
        (MINIMAL + "policy: {name: stigmergy}\nwindow: 5\n", 3, "window: must be at least 6 with policy.name: stig"),
        (MINIMAL + "elastic: {min_workers: 3}\n", 2, "elastic.min_workers: must not exceed the number of workers, 2"),
        (MINIMAL + "elastic: {min_workers: 0}\n", 2, "elastic.min_workers: must be at least 1"),
        (MINIMAL + "elastic: {min_workers: 1, max_workers: 1}\n", 2, "elastic.max_workers: must not be less than the"),
        (MINIMAL + "elastic: {max_workers: 4}\n", 2, "elastic.max_workers: needs elastic.min_workers"),
        (
            MINIMAL + "policy: {name: static, sizes: [64, 64]}\nelastic: {min_workers: 1, max_workers: 4}\n",
            3,
            "elastic.max_workers: needs a policy that can tell the sizes of more workers",
        ),
        (
            "cluster: {hosts: {10.0.0.1: {slots: 2}}, workers: [{}, {}, {}]}\n"
            "elastic: {min_workers: 1, max_workers: 4}\n",
            1,
            "cluster.hosts: have 2 slots for 4 workers: no room for worker 2; set slots",
        ),
        (
            "cluster: {hosts: {a: {}}, workers: [{}]}\nelastic: {min_workers: 1, max_workers: 2}\n",
            1,
            "cluster.hosts.a: must be an IP address by which hosts that join reach this one; or set slots",
        ),
        (
            "cluster: {hosts: {a: {address: '::1'}}, workers: [{}]}\nelastic: {min_workers: 1, max_workers: 2}\n",
            1,
            "cluster.hosts.a.address: must be an IP address by which hosts that join reach this one; or set slots",
        ),
        (
            "cluster: {hosts: {a: {address: 10.0.0.1}}, servers: [{host: worker-1}], workers: [{}, {later: true}]}\n"
            "elastic: {min_workers: 1}\n",
            1,
            "cluster.servers[0].host: names a worker that has no host when the job begins",
        ),
        (
            "cluster: {workers: [{later: true}, {}]}\nelastic: {min_workers: 1}\n",
            1,
            "workers[0].later: must stand behind the workers that the job begins with",
        ),
        ("cluster: {workers: [{later: true}]}\nelastic: {min_workers: 1}\n", 1, "leaves no worker that the job begins"),
        ("cluster: {workers: [{}, {later: true}]}\n", 1, "workers[1].later: needs elastic.min_workers"),
        (
            "cluster: {workers: [{}, {later: true}]}\nelastic: {min_workers: 2}\n",
            2,
            "elastic.min_workers: must not exceed the number of workers, 1",
        ),
        (
            "cluster: {workers: [{}]}\ncomm: local\nelastic: {min_workers: 1}\n",
            3,
            "elastic.min_workers: needs comm: byteps or gloo",
        ),
        (
            MINIMAL + "comm: gloo\nelastic: {min_workers: 1, join_wait_s: 120}\n",
            3,
            "elastic.join_wait_s: must be below timeouts.stall_fail_s, 120",
        ),
        (
            MINIMAL + "elastic: {min_workers: 1, join_wait_s: 120}\n",
            2,
            "elastic.join_wait_s: must be below timeouts.stall_fail_s, 120",
        ),
        (MINIMAL + "mode: off\nelastic: {min_workers: 1}\n", 3, "elastic.min_workers: needs an arbitrator, which mode"),
        (
            "cluster: {workers: [{}]}\nbatch:\n  max: 60\n",
            1,
            "workers[0].batch: must lie within 32..60, the bounds of worker 0 (got 64, t",
        ),
        (MINIMAL + "timeouts: {stall_warn_s: 6}\n", 2, "timeouts.stall_warn_s: must exceed lease_s = 6 (got 6.0)"),
        (MINIMAL + "timeouts: {job_s: 120}\n", 2, "timeouts.job_s: must exceed launch_s = 120"),
        (MINIMAL + "policy: {name: ppo, ppo: {minibatches: 9}}\n", 2, "exceed the 8 transitions"),
        (
            MINIMAL + "policy: {sizes: [64, 64]}\n",
            2,
            "policy.sizes: is only for policy.name: static; remove it, or choose that policy (got policy.name: pro",
        ),
        (MINIMAL + "policy: {name: static, sizes: [64]}\n", 2, "one size per worker, 2 in all"),
        (MINIMAL + "policy: {name: static, sizes: [64, 9]}\n", 2, "policy.sizes[1]: must lie within 32..1024"),
        (
            MINIMAL + "policy: {name: pid, ppo: {learn: true}}\n",
            2,
            "policy.ppo: is only for policy.name: ppo; remove it",
        ),
        (MINIMAL + "policy: {name: pid, safety: {}}\n", 2, "policy.safety: is only for policy.name: model or ppo"),
        (
            MINIMAL + "policy: {name: static, remember: true}\n",
            2,
            "policy.remember: is only for policy.name: proportional or pid or lbbsp or lbb or goodput or model or ppo",
        ),
        (
            MINIMAL + "policy: {name: ppo, options: {}}\n",
            2,
            "policy.options: is only for policy.name: package.module:Class",
        ),
        (MINIMAL + "policy:\n  name: a.b:C\n  pid: {}\n", 4, "policy.pid: is only for policy.name: pid"),
        (MINIMAL + "policy: {name: poo}\n", 2, "policy.name: must be one of static,"),
        (MINIMAL + "policy: {name: poo}\n", 2, "or package.module:Class; did you mean 'ppo'? (got 'poo')"),
        (MINIMAL + "policy: {name: 'a b:C'}\n", 2, "policy.name: must be one of static,"),
        ("cluster: {workers: [{min: 70, max: 65}]}\n", 1, "workers[0].min: leaves no size between 70 and 65"),
        ("cluster: {workers: [{min: 2000}]}\n", 1, "workers[0].min: leaves no size between 2000 and 1024"),
        ("cluster: {workers: [{max: 20000000}]}\n", 1, "workers[0].max: must be at most 16777216 (got 20000000)"),
        ("cluster: {workers: [{max: 9000000}, {max: 9000000}]}\n", 1, "beyond 16777216"),
        (MINIMAL + "timeouts: {stall_fail_s: 1e12}\n", 2, "timeouts.stall_fail_s: must be at most 1000000"),
        (MINIMAL + "timeouts:\n  job_s: 1e10\n", 3, "timeouts.job_s: must be at most 31622400"),
        (MINIMAL + "timeouts: {rpc_s: 1e-300}\n", 2, "timeouts.rpc_s: must be at least 0.001 (got 1e-300)"),
        (MINIMAL + "policy: {name: ppo, ppo: {hidden: 1000000000}}\n", 2, "policy.ppo.hidden: must be at most 1024"),
        (MINIMAL + "metrics: {interval_s: 1e-9}\n", 2, "metrics.interval_s: must be at least 0.01"),
        (MINIMAL + "seed: 999999999999999999\n", 2, "seed: must be at most 4294967295"),
        ("cluster:\n  workers: [{speed: 0.5}]\nemulation: none\n", 2, "speed: has no effect with emulation: none"),
        ("cluster:\n  port: 7\n  arbitrator_port: 7\n  workers: [{}]\n", 3, "already the scheduler's port"),
        ("cluster:\n  host: 'a b'\n  workers: [{}]\n", 2, "cluster.host: must match"),
        ("cluster:\n  servers: 1000\n  workers: [{}]\n", 2, "cluster.servers: must be at most 64 (got 1000)"),
        (
            "comm: local\ncluster:\n  wire: bf16\n  workers: [{}]\n",
            3,
            "cluster.wire: needs workers that exchange gradients, comm is local; remove it (got bf16)",
        ),
        (
            "comm: gloo\nelastic: {min_workers: 1}\ncluster:\n  wire: int8\n  workers: [{}, {}]\n",
            4,
            "cluster.wire: cannot be sent again after a loss over a ring; remove it or elastic.min_workers, or use",
        ),
        ("cluster:\n  wire: fp16\n  workers: [{}]\n", 2, "cluster.wire: must be one of float32, bf16, int8, auto"),
        (
            "mode: observe\ncluster:\n  wire: auto\n  workers: [{}, {}]\n",
            3,
            "cluster.wire: needs mode: adapt, as it changes while training runs; mode is observe (got auto)",
        ),
        ("cluster:\n  servers: 0\n  workers: [{}]\n", 2, "cluster.servers: must be at least 1 (got 0)"),
        ("cluster:\n  servers: []\n  workers: [{}]\n", 2, "cluster.servers: must have at least 1 item"),
        ("cluster:\n  servers: [3]\n  workers: [{}]\n", 2, "cluster.servers[0]: must be a mapping of keys to values"),
        (
            "cluster:\n  servers: many\n  workers: [{}]\n",
            2,
            "cluster.servers: must be auto, a number, or a list with one entry per server (got 'many')",
        ),
        ("cluster:\n  servers: true\n  workers: [{}]\n", 2, "cluster.servers: must be auto, a number, or a list"),
        ("cluster:\n  servers: 1.5\n  workers: [{}]\n", 2, "cluster.servers: must be auto, a number, or a list"),
        (
            "cluster:\n  servers:\n    - {}\n    - {hots: own}\n  workers: [{}]\n",
            4,
            "cluster.servers[1].hots: unknown key; did you mean 'host'?",
        ),
        (
            "cluster:\n  servers: [{host: worker-01}]\n  workers: [{}]\n",
            2,
            "cluster.servers[0].host: names a host, and cluster.hosts names none; add it there; or worker-N, or own",
        ),
        (
            "cluster:\n  servers:\n    - {host: worker-0}\n    - {host: worker-2}\n  workers: [{}, {}]\n",
            4,
            "cluster.servers[1].host: names a worker that is not there; the last one is worker-1 (got worker-2)",
        ),
    ],
)
def test_one_error_names_its_line_and_its_rule(tmp_path: Path, yaml_text: str, line: int, part: str) -> None:
    found = errors_of(tmp_path, yaml_text)
    assert len(found) == 1, found
    assert found[0].startswith(f"{line}: ")
    assert part in found[0]


def test_what_fits_at_once_is_said_in_tokens_where_sizes_are_and_not_found_out(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    tokens = "cluster: {workers: [{at_once: 80}, {}]}\nbatch: {unit: padded_tokens, at_once: 160}\npolicy: {}\n"
    file.write_text(tokens + "memory: auto\n")
    with pytest.raises(ConfigError, match="4: memory: finds out samples, and sizes are in tokens; set at_once"):
        load_config(file)
    file.write_text(tokens)
    config = load_config(file)
    assert [config.at_once(rank) for rank in (0, 1)] == [80, 160]
    assert config.bounds_at_once(0, 80.0) == (32, 80)
    file.write_text("cluster: {workers: [{at_once: 8}, {}]}\nbatch: {at_once: 16}\nmemory: auto\n")
    config = load_config(file)
    assert [config.at_once(rank) for rank in (0, 1)] == [8, 16]
    assert [config.bounds_at_once(rank, 40.0) for rank in (0, 1)] == [(32, 40), (32, 40)]


def test_an_unknown_key_far_from_any_known_one_lists_what_is_known(tmp_path: Path) -> None:
    assert errors_of(tmp_path, "cluster: {workers: [{}], xyzzy: 1}\n") == [
        "1: cluster.xyzzy: unknown key; known here: "
        "hosts, host, port, arbitrator_port, insecure, servers, wire, workers"
    ]


def test_a_rule_is_not_judged_by_a_default_that_stands_in_for_a_wrong_value(tmp_path: Path) -> None:
    # batch 16 breaks the default minimum, but the user's own minimum is only mistyped.
    assert errors_of(tmp_path, "cluster: {workers: [{batch: 16}]}\nbatch: {min: '8'}\n") == [
        "2: batch.min: must be an integer (got '8')"
    ]


def test_number_forms_people_write_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "cluster: {workers: [{speed: 1}, {speed: .5}]}\n"
        "policy: {name: ppo, ppo: {learning_rate: 3e-5, learn: no}}\n"
        "bucket_bytes: 4_000_000\ntimeouts: {job_s: 600}\n",
    )
    assert [worker.speed for worker in config.cluster.workers] == [1.0, 0.5]
    assert config.policy.ppo.learning_rate == 3e-5
    assert config.policy.ppo.learn is False
    assert config.bucket_bytes == 4_000_000
    assert config.timeouts.job_s == 600


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("servers: auto, ", ()),
        ("servers: 2, ", ("own", "own")),
        ("servers: [{host: worker-1}, {}, {host: own}, {host: worker-1}], ", ("worker-1", "own", "own", "worker-1")),
    ],
)
def test_servers_are_named_by_a_word_a_number_or_their_hosts(tmp_path: Path, text: str, hosts: tuple[str, ...]) -> None:
    config = load(tmp_path, f"cluster: {{{text}workers: [{{}}, {{}}]}}\n")
    assert tuple(server.host for server in config.cluster.servers or ()) == hosts
    assert role_hosts(config.cluster).servers == ("localhost",) * max(1, len(hosts))
    written = dump_config(config)
    assert load(tmp_path, written) == config
    assert ("servers: auto" in written) == (config.cluster.servers is None)


@pytest.mark.parametrize("text", ["off", "'off'", '"off"'])
def test_mode_off_needs_no_quotes(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, MINIMAL + f"mode: {text}\n").mode == "off"


def test_decide_of_an_earlier_release_is_read_as_guard_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(tmp_path, MINIMAL + "lr: decide\n") == load(tmp_path, MINIMAL + "lr: guard\n")
    (told,) = caplog.messages
    assert "write lr: guard" in told


def test_aliases_work_within_bounds(tmp_path: Path) -> None:
    config = load(tmp_path, "cluster:\n  workers: [&fast {batch: 128}, *fast]\n")
    assert config.initial_sizes() == (128, 128)


@pytest.mark.slow
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("hostile", "part"),
    [
        ("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
         + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)), "with aliases expanded"),
        ("a: &a [*a]\n", "nested deeper"),
        ("a: &a {b: *a}\n", "nested deeper"),
        ("[" * 200_000, "nested deeper"),
        ("{a: " * 200_000, "nested deeper"),
        ("- " * 200_000, "nested deeper"),
        ("a:\n" + "- 1\n" * 200_000, "more than 50000 values"),
        (f"name: {'x' * 900_000}\n" + MINIMAL, "name: must have at most 64 characters"),
        ("x" * (MAX_BYTES + 1), "larger than 1000000 bytes"),
    ],
)  # fmt: skip
def test_bombs_end_quickly_with_a_short_message(tmp_path: Path, hostile: str, part: str) -> None:
    found = errors_of(tmp_path, hostile)
    assert part in found[0] if len(found) == 1 else any(part in line for line in found)
    assert sum(map(len, found)) < 10_000


@pytest.mark.slow
def test_a_large_cluster_is_no_bomb(tmp_path: Path) -> None:
    config = Config(cluster=Cluster(workers=(WorkerSection(batch=64),) * 1024))
    file = tmp_path / "cluster.yaml"
    file.write_text(dump_config(config))
    assert len(load_config(file).cluster.workers) == 1024


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "1: not UTF-8 text"),
        (b"seed: 1\nname: caf\xe9\n", "2: not UTF-8 text (byte 0xe9)"),
        (b"\xff\xfes\x00e\x00", "1: not UTF-8 text"),
        (b"\x00\x00\x00", "1: character '\\x00' is not allowed"),
    ],
)
def test_binary_files_are_named_as_such(tmp_path: Path, content: bytes, part: str) -> None:
    assert part in errors_of(tmp_path, content)[0]


def test_missing_file_directory_and_odd_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config("a\0b")


def test_rules_hold_after_overrides_too(tmp_path: Path) -> None:
    config = load(tmp_path, "cluster: {workers: [{}]}\n")
    changed = config.model_copy(update={"policy": PolicySection(name="ppo", ppo=Ppo(minibatches=9))})
    with pytest.raises(ConfigError, match=r"--policy ppo: policy.ppo.minibatches: .*4 transitions"):
        check_rules(changed, "--policy ppo")


SECTIONS = ["name", "seed", "comm", "mode", "cluster", "workers", "batch", "window", "policy", "ppo", "timeouts", "env"]
FIELDS = ["speed", "min", "max", "port", "host", "sizes", "rpc_s", "command"]
KEYS = st.sampled_from([*SECTIONS, *FIELDS, "?", "<<", "&", "*", "!", "-", ":", "#", "|", ">"])
SCALARS = st.one_of(
    st.integers().map(str), st.floats().map(str), st.text(max_size=8), st.sampled_from(
        ["yes", "off", "null", "~", "[]", "{}", "0x1F", "1_000", "2001-01-01", "!!int x", "'", '"\\u', "&a", "*a"]
    ),
)  # fmt: skip
LINES = st.builds(
    lambda indent, dash, key, value: " " * indent + dash + f"{key}: {value}",
    st.integers(0, 6), st.sampled_from(["", "- "]), KEYS, SCALARS,
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(
    st.binary(max_size=200), st.text(max_size=200).map(str.encode, ) | st.lists(LINES, max_size=12).map(
        lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
    ),
))  # fmt: skip
def test_any_bytes_give_a_config_or_a_config_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fuzz.yaml"
    file.write_bytes(content)
    try:
        load_config(file)
    except ConfigError as error:
        assert all(re.match(rf"{re.escape(str(file))}:\d+: |\.\.\. and ", line) for line in str(error).splitlines())


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*Config.model_fields, "workers", "min", "ppo", "speed"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(list(Config.model_fields)), JSON_LIKE, max_size=6))
def test_any_structure_gives_a_config_or_a_config_error(tmp_path: Path, data: dict[str, object]) -> None:
    file = tmp_path / "fuzz.yaml"
    file.write_text(yaml.safe_dump({"cluster": {"workers": [{}]}, **data}, allow_unicode=True))
    with contextlib.suppress(ConfigError):
        load_config(file)


NUMBERS = st.integers() | st.floats() | st.sampled_from([1e10, 1e12, 1e300, 5e-324, 2**31, 2**63])
NUMERIC = [
    *Timeouts.model_fields,
    *Ppo.model_fields,
    *WorkerSection.model_fields,
    *Config.model_fields,
    "servers",
    "port",
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(NUMERIC), NUMBERS, max_size=4))
def test_whatever_number_loads_is_within_the_bounds_of_its_key(tmp_path: Path, numbers: dict[str, float]) -> None:
    def own(section: type[BaseModel]) -> dict[str, float]:
        return {key: value for key, value in numbers.items() if key in section.model_fields}

    worker, cluster, ppo = own(WorkerSection), own(Cluster), own(Ppo)
    policy = {"policy": {"name": "ppo", "ppo": ppo}} if ppo else {}
    file = tmp_path / "fuzz.yaml"
    data = {**own(Config), "cluster": {**cluster, "workers": [worker]}, "timeouts": own(Timeouts), **policy}
    file.write_text(yaml.safe_dump(data))
    with contextlib.suppress(ConfigError):
        loaded = load_config(file)
        assert loaded.timeouts.stall_fail_s <= MAX_WAIT_S < threading.TIMEOUT_MAX
        assert loaded.policy.ppo.hidden**2 < 2**21


PRINTABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.lists(
        PRINTABLE | st.sampled_from(["1e5", "064", "yes", "~", "<<", "22:22", "a b;$(c)'\"\n"]), max_size=4
    ),
    speeds=st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    mode=st.sampled_from(["adapt", "observe", "off"]),
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,5}_X", fullmatch=True), PRINTABLE, max_size=3),
    rate=st.floats(1e-12, 1),
)
def test_dump_and_load_give_the_same_config(
    tmp_path: Path, command: list[str], speeds: list[float], mode: str, env: dict[str, str], rate: float
) -> None:
    config = Config.model_validate(
        {
            "cluster": {"workers": tuple({"speed": speed} for speed in speeds)},
            "command": tuple(command),
            "mode": mode,
            "env": env,
            "policy": {"name": "ppo", "ppo": {"learning_rate": rate}},
        }
    )
    file = tmp_path / "dumped.yaml"
    file.write_bytes(dump_config(config).encode())
    assert load_config(file) == config


def test_what_a_run_folder_keeps_says_which_settings_of_the_learner_were_set(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + "policy: {name: ppo, ppo: {gamma: 0.95}}\n")
    (tmp_path / "dumped.yaml").write_text(dump_config(config))
    again = load_config(tmp_path / "dumped.yaml")
    assert again == config
    assert again.policy.ppo.model_fields_set == {"gamma"}


def test_a_run_folder_of_an_earlier_version_with_every_section_is_still_read(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(MINIMAL + "policy: {name: pid, sizes: null, pid: {keep_global: true}, ppo: {gamma: 0.9}}\n")
    policy = load_recorded_config(file).policy
    assert (policy.name, policy.pid.keep_global, policy.foreign_keys) == ("pid", True, ())
    assert policy.ppo == Ppo()
