"""`dynamix certificates`: one folder per host, all of one authority."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamix_ps.certificates import Certificates
from dynamix_ps.cli.certificates import command
from dynamix_ps.errors import UsageError


def run(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False).output


def test_every_host_gets_a_folder_and_all_are_of_one_authority(tmp_path: Path) -> None:
    out = tmp_path / "new" / "certificates"
    said = run("-o", str(out), "10.0.0.1", "node_2", "fd00::3")
    made = [Certificates.load(out / address) for address in ("10.0.0.1", "node_2", "fd00::3")]
    assert len({each.authority for each in made}) == 1
    assert len({each.certificate for each in made}) == 3
    assert out.stat().st_mode & 0o077 == 0
    assert f"written: {out / 'node_2'}" in said
    assert "DYNAMIX_TLS" in said
    with pytest.raises(UsageError, match="is there already"):
        run("-o", str(out), "10.0.0.1")


@pytest.mark.parametrize("address", ["../up", "a b", "10.0.0.1\nbasicConstraints = CA:TRUE", "-x"])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match="is no name or address of a host"):
        run("-o", str(tmp_path / "new"), "--", address)
    assert not (tmp_path / "new").exists()
