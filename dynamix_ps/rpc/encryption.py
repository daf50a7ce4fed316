"""Encrypted connections: mutual TLS, in which both sides show a certificate of the run's authority."""

from __future__ import annotations

import ipaddress
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

# The environment says which certificates a role has: those in a folder, or none where the launcher knows that nothing
# leaves the machine (`off`). Where it says nothing, what leaves the machine is in the clear only if the cluster file
# says `insecure`.


def certificates_for(arbitrator: str, config: Config) -> Certificates | None:
    """What a role needs to talk to the arbitrator at host:port; None: they talk in the clear.

    Raises:
        EnvironmentNotReady: the certificates cannot be used, or there are none for an arbitrator on another machine.
    """
    host = split_host_port(arbitrator)[0]
    stays_here = is_loopback(host) or bind_error(host, 0) is None
    return _certificates(config, stays_here, f"the arbitrator is on another machine, {arbitrator}")


def arbitrators_certificates(address: str, config: Config) -> Certificates | None:
    """What the arbitrator needs to listen at host:port; None: it listens in the clear.

    Raises:
        EnvironmentNotReady: the certificates cannot be used, or there are none though other machines reach the address.
    """
    host = split_host_port(address)[0]
    stays_here = is_loopback(host) and not _is_unspecified(host)
    return _certificates(config, stays_here, f"arbitrator: other machines reach {address}, where it is to listen")


def _certificates(config: Config, stays_here: bool, why: str) -> Certificates | None:
    told = variables.get(variables.TLS)
    if told not in (None, OFF):
        return Certificates.load(Path(str(told)))
    if told == OFF or config.cluster.insecure or stays_here:
        return None
    raise EnvironmentNotReady(
        f"{why}, and {variables.TLS} is not set: calls would go over the network unencrypted; make "
        f"certificates by `dynamix certificates`, and set {variables.TLS} to the folder of this host, or set "
        "`insecure: true` under `cluster` if you trust the network"
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


def _is_unspecified(host: str) -> bool:
    """Whether an address means all addresses of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _as_bytes(certificates: Certificates) -> tuple[bytes, bytes, bytes]:
    return certificates.authority.encode(), certificates.certificate.encode(), certificates.key.encode()
