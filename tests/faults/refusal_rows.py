"""Launches that cannot work: broken cluster files, and commands, hosts and folders that are not there."""

from __future__ import annotations

from tests.faults.table import Outcome, Refusal

_FILE = b"name: t\ncomm: gloo\nmode: off\ncluster: {workers: [{}, {}]}\n"


def _wrong(key: str, line: str, says: str) -> Refusal:
    return Refusal(f"config-{key}", _FILE + line.encode(), Outcome(2, f"error: FILE:5: {says}"))


REFUSALS = (
    _wrong("unknown-key", "widow: 3\n", "widow: unknown key; did you mean 'window'"),
    _wrong("wrong-type", "window: many\n", "window: must be an integer"),
    _wrong("out-of-range", "window: 0\n", "window: "),
    _wrong("endless-timeout", "timeouts: {stall_fail_s: 1.0e+12}\n", "timeouts.stall_fail_s: must be at most"),
    _wrong("not-a-number", "timeouts: {rpc_s: .nan}\n", "timeouts.rpc_s: "),
    _wrong("huge-network", "policy: {name: ppo, ppo: {hidden: 1000000000}}\n", "policy.ppo.hidden: "),
    _wrong("unknown-policy", "policy: {name: magic}\n", "policy.name: "),
    _wrong("bounds-crossed", "batch: {min: 64, max: 32}\n", "batch"),
    _wrong("key-twice", "mode: adapt\n", "mode: "),
    Refusal("config-broken-yaml", _FILE + b"window: [3\n", Outcome(2, "error: FILE:6: not valid YAML")),
    _wrong("tab", "\twindow: 3\n", ""),
    Refusal("config-empty", b"", Outcome(2, "error: FILE")),
    Refusal("config-a-list", b"- 1\n", Outcome(2, "error: FILE:1")),
    Refusal("config-binary", bytes(range(256)), Outcome(2, "error: FILE")),
    Refusal("config-too-deep", b"[" * 100_000, Outcome(2, "error: FILE")),
    Refusal(
        "policy-that-is-a-command",
        b"name: t\ncluster: {workers: [{}, {}]}\npolicy: {name: 'os:system', options: {command: 'touch ran'}}\n",
        Outcome(2, "error: FILE:3: policy.name: .*has no class system"),
    ),
    Refusal(
        "host-that-does-not-resolve",
        b"name: t\ncomm: gloo\ncluster: {host: no-such-host.invalid, workers: [{}]}\n",
        Outcome(3, "error: cluster.host: .*no-such-host.invalid"),
    ),
    Refusal("no-script", _FILE, Outcome(2, "error: script not found: absent.py"), ("--", "python", "absent.py")),
    Refusal("no-program", _FILE, Outcome(2, "error: command not found"), ("--", "absent-program")),
    Refusal("no-checkpoint", _FILE, Outcome(2, "error: --resume: no checkpoint"), ("--resume", "absent", "--", "true")),
    Refusal(
        "run-folder-not-allowed",
        _FILE,
        Outcome(3, "error: cannot create the run folder"),
        ("--run-dir", "/proc/x", "--", "true"),
    ),
)
