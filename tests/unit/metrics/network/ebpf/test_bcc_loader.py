"""Finding bcc: installed, absent, broken, or another package of the same name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf import bcc_loader
from dynamix_ps.metrics.network.ebpf.bcc_loader import HEADERS, load_bcc, own_headers, quiet


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever bcc this process knows is back afterwards."""
    known = {name: module for name, module in sys.modules.items() if name == "bcc" or name.startswith("bcc.")}
    for name in known:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(bcc_loader, "_SYSTEM_FOLDERS", ())
    yield
    bcc_loader._forget()
    sys.modules.update(known)


def installed(folder: Path, source: str, right: bool) -> Path:
    (folder / "bcc").mkdir(parents=True)
    (folder / "bcc" / "__init__.py").write_text(source)
    if right:
        (folder / "bcc" / "libbcc.py").touch()
    return folder


def test_none() -> None:
    with pytest.raises(SourceError, match=r"is not installed$") as error:
        load_bcc()
    assert "python3-bpfcc" in error.value.fix


def test_found_beside_the_package_index_s_one_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = installed(tmp_path / "venv", "import numpy_it_needs\n", right=False)
    right = installed(tmp_path / "system", "from bcc.table import BPF\n", right=True)
    (right / "bcc" / "table.py").write_text("class BPF: ...\n")
    monkeypatch.setattr(sys, "path", ["", str(wrong)])
    monkeypatch.setattr(bcc_loader, "_SYSTEM_FOLDERS", (right,))
    module = load_bcc()
    assert module.__file__ == str(right / "bcc" / "__init__.py")
    assert load_bcc() is module


def test_found_although_the_wrong_one_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcc", ModuleType("bcc"))
    monkeypatch.setattr(sys, "path", [str(installed(tmp_path, "class BPF: ...\n", right=True))])
    assert hasattr(load_bcc(), "BPF")


def test_only_the_wrong_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(installed(tmp_path, "", right=False))])
    with pytest.raises(SourceError, match="another package of this name") as error:
        load_bcc()
    assert "pip uninstall bcc" in error.value.fix


def test_a_broken_one_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "raise OSError('libbcc.so.0: cannot open')\n"
    monkeypatch.setattr(sys, "path", [str(installed(tmp_path, source, right=True))])
    with pytest.raises(SourceError, match=r"libbcc\.so\.0: cannot open"):
        load_bcc()
    assert "bcc" not in sys.modules


def test_what_is_written_to_the_terminal_is_collected(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), quiet() as lines:
        os.write(2, b"one\ntwo\n")
        raise KeyError
    os.write(2, b"three")
    assert lines == ["one", "two"]
    assert capfd.readouterr().err == "three"


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_headers_are_ours_while_compiling(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    if before:
        monkeypatch.setenv("BCC_KERNEL_SOURCE", before)
    with own_headers():
        assert os.environ["BCC_KERNEL_SOURCE"] == str(HEADERS)
    assert os.environ.get("BCC_KERNEL_SOURCE") == before
