"""Who gets a connection where calls are encrypted, and when a role needs certificates."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dynamix_ps.certificates import Certificates
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.roles.authority import DAY_S, Authority
from dynamix_ps.rpc.encryption import arbitrators_certificates, certificates_for, open_channel
from dynamix_ps.rpc.server import RpcServer
from tests.unit.arbitrator.service_bench import Bench, Scripted

pytestmark = pytest.mark.timeout(60)

RUN, TOKEN, HERE = "run-1", "secret", "127.0.0.1"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(time.time())


@pytest.fixture(scope="module")
def other() -> Authority:
    """That of another run."""
    return Authority(time.time())


def answered(folder: Path, certificates: Certificates | None, dial: Callable[[str], grpc.Channel]) -> str:
    """What a health check gets from a server with these certificates: `SERVING`, or why there is no connection."""

    def ask(address: str) -> str:
        with dial(address) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

    async def story() -> str:
        server = RpcServer(Bench(folder, Scripted()).arbitrator, RUN, TOKEN, 3, certificates)
        port = await server.start(f"{HERE}:0")
        try:
            return await asyncio.to_thread(ask, f"{HERE}:{port}")
        finally:
            await server.stop(0)

    return asyncio.run(story())


def called(folder: Path, server: Certificates | None, client: Certificates | None) -> str:
    return answered(folder, server, lambda address: open_channel(address, client, 3))


def test_hosts_of_one_run_have_a_connection(tmp_path: Path, authority: Authority) -> None:
    assert called(tmp_path, authority.issue(HERE), authority.issue("10.0.0.2")) == "SERVING"


def test_a_client_without_a_certificate_of_the_run_is_refused(
    tmp_path: Path, authority: Authority, other: Authority
) -> None:
    server = authority.issue(HERE)
    expired = Authority(time.time() - 10 * DAY_S, 9 * DAY_S).issue(HERE)
    for wrong in (None, other.issue(HERE), expired):
        # It knows the authority of the run, which is no secret.
        client = wrong and dataclasses.replace(wrong, authority=authority.certificate)
        assert called(tmp_path, server, client).startswith("UNAVAILABLE: failed to connect"), wrong
    credentials = grpc.ssl_channel_credentials(authority.certificate.encode())
    said = answered(tmp_path, server, lambda address: grpc.secure_channel(address, credentials))
    assert said.startswith("UNAVAILABLE"), "encrypted, but without a certificate"


def test_a_client_refuses_a_server_that_is_not_the_arbitrator_of_its_run(
    tmp_path: Path, authority: Authority, other: Authority
) -> None:
    client = authority.issue("10.0.0.2")
    assert "CERTIFICATE_VERIFY_FAILED" in called(tmp_path, other.issue(HERE), client)
    assert "Hostname Verification Check failed" in called(tmp_path, authority.issue("10.0.0.3"), client)
    assert called(tmp_path, None, client).startswith("UNAVAILABLE")


def test_a_client_refuses_an_expired_server(tmp_path: Path) -> None:
    expired = Authority(time.time() - 10 * DAY_S, 9 * DAY_S)
    assert "certificate has expired" in called(tmp_path, expired.issue(HERE), expired.issue("10.0.0.2"))


def config(**cluster: Any) -> Config:
    return Config.model_validate({"cluster": {"workers": ({},), **cluster}})


@pytest.mark.parametrize("address", [f"{HERE}:7117", "[::1]:7117", "localhost:7117"])
def test_within_a_machine_calls_need_no_certificates(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNAMIX_TLS", raising=False)
    assert certificates_for(address, config()) is None


ELSEWHERE = "192.0.2.1:7117"  # an address for documentation, which no machine has


def test_to_another_machine_somebody_must_say_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNAMIX_TLS", raising=False)
    wanted = "the arbitrator is on another machine, 192.0.2.1:7117, and DYNAMIX_TLS is not set"
    with pytest.raises(EnvironmentNotReady, match=re.escape(wanted)) as refused:
        certificates_for(ELSEWHERE, config())
    assert "`dynamix certificates`" in str(refused.value) and "`insecure: true`" in str(refused.value)
    assert certificates_for(ELSEWHERE, config(insecure=True)) is None
    monkeypatch.setenv("DYNAMIX_TLS", "off")
    assert certificates_for(ELSEWHERE, config()) is None


@pytest.mark.parametrize("address", [ELSEWHERE, "0.0.0.0:7117", "[::]:7117", "node-1.example:7117"])
def test_an_arbitrator_that_others_reach_listens_in_the_clear_only_if_somebody_says_so(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DYNAMIX_TLS", raising=False)
    for own in (f"{HERE}:7117", "[::1]:7117", "localhost:7117"):
        assert arbitrators_certificates(own, config()) is None
    wanted = f"arbitrator: other machines reach {address}, where it is to listen, and DYNAMIX_TLS is not set"
    with pytest.raises(EnvironmentNotReady, match=re.escape(wanted)) as refused:
        arbitrators_certificates(address, config())
    assert "`dynamix certificates`" in str(refused.value) and "`insecure: true`" in str(refused.value)
    assert arbitrators_certificates(address, config(insecure=True)) is None
    monkeypatch.setenv("DYNAMIX_TLS", "off")  # as the launcher says where all roles are on one machine
    assert arbitrators_certificates(address, config()) is None


def test_certificates_that_are_given_count_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    made = authority.issue(HERE)
    made.save(tmp_path / "mine")
    monkeypatch.setenv("DYNAMIX_TLS", str(tmp_path / "mine"))
    for address in (f"{HERE}:7117", ELSEWHERE):
        assert certificates_for(address, config(insecure=True)) == made
        assert arbitrators_certificates(address, config()) == made
    monkeypatch.setenv("DYNAMIX_TLS", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentNotReady, match=r"/nothing/ca\.crt: No such file"):
        certificates_for(ELSEWHERE, config())
