"""Files of certificates: nobody else may read them, and what is not usable is refused."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from dynamix_ps.certificates import Certificates
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.roles.authority import Authority


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_saved_is_for_this_user_alone_and_can_be_loaded(tmp_path: Path) -> None:
    made = Authority(time.time()).issue("10.0.0.1")
    folder = tmp_path / "certificates"
    made.save(folder)
    assert mode(folder) == 0o700
    assert {file.name: mode(file) for file in folder.iterdir()} == dict.fromkeys(
        ("ca.crt", "tls.crt", "tls.key"), 0o600
    )
    assert Certificates.load(folder) == made
    with pytest.raises(FileExistsError):
        made.save(folder)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("tls.key", None, "/tls.key: No such file or directory"),
        ("tls.key", "key of another host", "key values mismatch"),
        ("tls.crt", "no certificate", "PEM lib"),
        ("ca.crt", "", "Empty certificate data"),
        ("ca.crt", "kein Schlüssel", "ascii"),
    ],
)
def test_files_that_are_not_usable_are_refused(tmp_path: Path, file: str, text: str | None, reason: str) -> None:
    authority = Authority(time.time())
    folder = tmp_path / "certificates"
    authority.issue("10.0.0.1").save(folder)
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(authority.issue("10.0.0.2").key if text == "key of another host" else text)
    with pytest.raises(EnvironmentNotReady, match=reason) as refused:
        Certificates.load(folder)
    assert f"expected in {folder} the PEM files ca.crt (of the authority), tls.crt and tls.key" in str(refused.value)
