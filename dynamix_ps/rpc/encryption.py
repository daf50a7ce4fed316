"""Encrypted connections: mutual TLS, in which both sides show a certificate of the run's authority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from dynamix_ps.addresses import bind_error, split_host_port
from dynamix_ps.certificates import OFF, Certificates
from dynamix_ps.config import variables
from dynamix_ps.config.host_rules import is_loopback
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.rpc.channel import client_options


def certificates_for(arbitrator: str, config: Config) -> Certificates | None:
    """What a role needs to talk to the arbitrator at host:port; None: they talk in the clear.

    The environment says which: a folder, or `off`, where the launcher knows that nothing leaves the machine. Where it
    says nothing, calls are in the clear within this machine, and between machines if the cluster file says `insecure`.

    Raises:
        EnvironmentNotReady: the certificates cannot be used, or there are none for an arbitrator on another machine.
    """
    told = variables.get(variables.TLS)
    if told not in (None, OFF):
        return Certificates.load(Path(str(told)))
    if told == OFF or config.cluster.insecure or _is_here(split_host_port(arbitrator)[0]):
        return None
    raise EnvironmentNotReady(
        f"the arbitrator is on another machine, {arbitrator}, and {variables.TLS} is not set: the token of the run "
        f"would go there unencrypted; make certificates by `dynamix certificates`, and set {variables.TLS} to the "
        "folder of this host, or set `insecure: true` under `cluster` if you trust the network"
    )


def open_channel(address: str, certificates: Certificates | None, n_workers: int) -> grpc.Channel:
    """A connection to host:port. With certificates, the other side must show one for this host."""
    options = client_options(n_workers)
    if certificates is None:
        return grpc.insecure_channel(address, options=options)
    authority, certificate, key = _as_bytes(certificates)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate), options=options)


def add_port(server: Any, address: str, certificates: Certificates | None) -> int:
    """Let a server listen on host:port. With certificates, it lets in nobody who does not show one. Returns the port.

    Raises RuntimeError if the address cannot be had.
    """
    if certificates is None:
        return int(server.add_insecure_port(address))
    authority, certificate, key = _as_bytes(certificates)
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    return int(server.add_secure_port(address, credentials))


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine, so that nothing that is sent there leaves it."""
    return is_loopback(host) or bind_error(host, 0) is None


def _as_bytes(certificates: Certificates) -> tuple[bytes, bytes, bytes]:
    return certificates.authority.encode(), certificates.certificate.encode(), certificates.key.encode()
