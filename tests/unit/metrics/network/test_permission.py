"""Reasons why BPF programs cannot be loaded, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.permission import check_permitted, refused

_WHOLE = "         0          0 4294967295\n"


def proc(folder: Path, capabilities: int, uid_map: str = _WHOLE, seccomp: int = 0) -> Path:
    (folder / "self").mkdir()
    (folder / "self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\nSeccomp:\t{seccomp}\n")
    (folder / "self/uid_map").write_text(uid_map)
    return folder


@pytest.mark.parametrize("capabilities", [1 << 21, 1 << 38 | 1 << 39, 0x1FFFFFFFFFF])
def test_permitted(tmp_path: Path, capabilities: int) -> None:
    check_permitted(proc(tmp_path, capabilities))


@pytest.mark.parametrize(
    ("capabilities", "missing"), [(0, "CAP_BPF and CAP_PERFMON"), (1 << 39, "CAP_PERFMON"), (1 << 38, "CAP_BPF")]
)
@pytest.mark.parametrize(
    ("user", "who", "fix"), [(1000, "user 1000", "sudo dynamix probe serve"), (0, "this root", "--cap-add BPF")]
)
def test_missing_capabilities_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capabilities: int, missing: str, user: int, who: str, fix: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(SourceError, match=rf"^{who}.* lacks {missing}$") as error:
        check_permitted(proc(tmp_path, capabilities))
    assert fix in error.value.fix


def test_a_user_namespace_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="rootless container"):
        check_permitted(proc(tmp_path, 1 << 21, uid_map="0 1000 1\n"))


@pytest.mark.parametrize(
    ("lockdown", "seccomp", "reason", "fix"),
    [
        ("none integrity [confidentiality]", 2, "locked down", "lockdown=integrity"),
        ("none [integrity] confidentiality", 2, "seccomp", "seccomp=unconfined"),
        ("[none] integrity confidentiality", 0, "policy", "as root"),
        (None, 0, "policy", "as root"),
    ],
)
def test_a_refusal_is_explained(tmp_path: Path, lockdown: str | None, seccomp: int, reason: str, fix: str) -> None:
    if lockdown:
        (tmp_path / "lockdown").write_text(lockdown)
    error = refused(proc(tmp_path, 1 << 21, seccomp=seccomp), tmp_path / "lockdown")
    assert reason in str(error)
    assert fix in error.fix
