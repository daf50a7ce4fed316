"""Reads and checks the variables of a role. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamix_ps.addresses import host_port
from dynamix_ps.config import variables
from dynamix_ps.errors import UsageError

ROLES = ("worker", "server", "scheduler")
FLOAT32, AUTO = "float32", "auto"
WIRES = (FLOAT32, "bf16", "int8", AUTO)  # as in `cluster.wire`


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """One BytePS process, as its variables describe it."""

    role: str
    workers: int
    worker_id: int
    local_size: int
    distributed: bool  # false: a single worker, which needs neither server nor scheduler
    root_host: str  # where the roles find each other: of the scheduler, or of worker 0 in a ring
    root_port: int

    @property
    def root(self) -> str:
        return host_port(self.root_host, self.root_port)


def read_role(environ: Mapping[str, str]) -> RoleSettings:
    """Check the variables of bpslaunch.

    Raises:
        UsageError: one line per missing or wrong variable.
    """
    problems: list[str] = []
    role = environ.get("DMLC_ROLE", "").lower()
    if role not in ROLES:
        problems.append(_complaint(environ, "DMLC_ROLE", "one of " + ", ".join(ROLES)))
    workers = _integer(environ, "DMLC_NUM_WORKER", 1, 100_000, problems)
    distributed = workers != 1 or environ.get("BYTEPS_FORCE_DISTRIBUTED") == "1"
    host, port = environ.get("DMLC_PS_ROOT_URI", ""), 0
    if distributed:
        _integer(environ, "DMLC_NUM_SERVER", 0 if role == "worker" else 1, 100_000, problems)  # 0: ring all-reduce
        port = _integer(environ, "DMLC_PS_ROOT_PORT", 1, 65535, problems) or 0
        if not host:
            problems.append(_complaint(environ, "DMLC_PS_ROOT_URI", "the scheduler's host name or address"))
    worker_id = 0
    if role == "worker":
        worker_id = _integer(environ, "DMLC_WORKER_ID", 0, (workers or 100_000) - 1, problems) or 0
    if environ.get(variables.WIRE, FLOAT32) not in WIRES:
        problems.append(_complaint(environ, variables.WIRE, "one of " + ", ".join(WIRES)))
    if problems:
        raise UsageError("\n".join(problems))
    devices = [device for device in environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if device]
    return RoleSettings(role, workers or 1, worker_id, max(1, len(devices)), distributed, host, port)


def _integer(environ: Mapping[str, str], name: str, low: int, high: int, problems: list[str]) -> int | None:
    text = environ.get(name, "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
        return int(text)
    problems.append(_complaint(environ, name, f"an integer from {low} to {high}"))
    return None


def _complaint(environ: Mapping[str, str], name: str, expected: str) -> str:
    value = environ.get(name)
    return f"{name} is {'not set' if value is None else repr(value)}; expected {expected}"
