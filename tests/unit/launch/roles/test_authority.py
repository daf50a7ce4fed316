"""Certificates of a run: for whom and how long they count, and where their keys never are."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.certificates import Certificates
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.roles import authority as module
from dynamix_ps.launch.roles.authority import DAY_S, LONGEST_S, Authority, is_encrypted, is_exposed

TWO = {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}}


def job(hosts: dict[str, Any] = TWO, workers: int = 2, insecure: bool = False, **keys: Any) -> Config:
    cluster = {"hosts": hosts, "workers": ({},) * workers, "insecure": insecure}
    return resolved(Config.model_validate({"cluster": cluster, **keys}))


def shown(certificates: Certificates, name: str, folder: Path) -> dict[str, Any]:
    """What a client that goes to `name` sees of a server's certificate; raises SSLError if it does not accept it."""
    certificates.save(folder)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=certificates.authority)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 2:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    seen = ends[0].getpeercert()
    assert seen is not None
    return dict(seen)


def test_a_certificate_counts_for_the_address_of_its_host_alone(tmp_path: Path) -> None:
    authority = Authority(time.time())
    for number, address in enumerate(("10.0.0.1", "fd00::1", "node_1.cluster.local")):
        made = authority.issue(address)
        assert shown(made, address, tmp_path / f"right-{number}")["subjectAltName"]
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            shown(made, "10.0.0.9", tmp_path / f"wrong-{number}")
    assert authority.issue("10.0.0.1").key != authority.issue("10.0.0.1").key


def test_a_certificate_counts_as_long_as_the_job_may_last(tmp_path: Path) -> None:
    now_s = time.time()
    for job_s, valid_s in ((None, LONGEST_S), (3600.0, 3600 + DAY_S)):
        authority = Authority.of_run(job(timeouts={"job_s": job_s}))
        assert authority is not None
        seen = shown(authority.issue("10.0.0.1"), "10.0.0.1", tmp_path / f"{job_s}")
        assert ssl.cert_time_to_seconds(seen["notAfter"]) == pytest.approx(now_s + valid_s, abs=600)
        # Clocks that are late by less than a day do not matter.
        assert ssl.cert_time_to_seconds(seen["notBefore"]) == pytest.approx(now_s - DAY_S, abs=600)


def test_an_expired_certificate_is_not_accepted(tmp_path: Path) -> None:
    authority = Authority(time.time() - 10 * DAY_S, 9 * DAY_S)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shown(authority.issue("10.0.0.1"), "10.0.0.1", tmp_path / "files")


def test_private_keys_are_in_no_file_and_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = subprocess.run, list[str]()

    def spy(argv: tuple[str, ...], **options: Any) -> Any:
        done = run(argv, **options)
        seen.extend(argv)
        if options["cwd"]:
            seen.extend(file.read_text() for file in Path(options["cwd"]).iterdir())
        return done

    monkeypatch.setattr(module.subprocess, "run", spy)
    made = Authority(time.time()).issue("10.0.0.1")
    assert "PRIVATE KEY" in made.key
    assert any("CERTIFICATE REQUEST" in text for text in seen)
    assert not any("PRIVATE KEY" in text for text in seen)
    assert "PRIVATE KEY" not in repr(made)


@pytest.mark.parametrize(
    ("config", "encrypted", "exposed"),
    [
        (job(), True, False),
        (job(insecure=True), False, True),
        (job(mode="off"), False, False),
        (job(mode="off", insecure=True), False, False),
        (job(policy={"name": "stigmergy"}), False, False),  # there are no calls
        (job({"a": {"address": "10.0.0.1", "slots": 2}, "b": {"address": "10.0.0.2"}}), False, False),
        (job({}), False, False),
        (job({}, insecure=True), False, False),
    ],
)
def test_calls_between_hosts_are_encrypted_unless_the_file_says_insecure(
    config: Config, encrypted: bool, exposed: bool
) -> None:
    assert (is_encrypted(config), is_exposed(config)) == (encrypted, exposed)
    assert (Authority.of_run(config) is not None) == encrypted


def test_without_openssl_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EnvironmentNotReady, match=r"cannot run openssl: No such file.*install OpenSSL.*`insecure: true`"
    ):
        Authority(time.time())
    (tmp_path / "openssl").write_text("#!/bin/sh\necho 'no such curve' >&2; exit 1\n")
    (tmp_path / "openssl").chmod(0o755)
    with pytest.raises(EnvironmentNotReady, match="openssl req fails: no such curve; install"):
        Authority(time.time())
