"""The secret that the pods of one job share: a token, and a certificate that an authority of the job signed.

A folder holds the secret, as Kubernetes mounts a Secret. All pods have the same token and the same certificate: a
process that has them belongs to the job. The certificate names no host, so it is valid wherever the pods are.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from dynamix_ps.certificates import AUTHORITY, CERTIFICATE, KEY, Certificates
from dynamix_ps.errors import EnvironmentNotReady

TOKEN = "token"  # file of the folder, beside those of the certificates
NAME = "pods.dynamix"  # in the certificate, in place of an address
_FORM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class JobSecret:
    """`token`: 64 hexadecimal digits."""

    token: str = field(repr=False)
    certificates: Certificates

    @property
    def files(self) -> dict[str, str]:
        """The texts of the folder's files by name."""
        own = self.certificates
        return {TOKEN: self.token, AUTHORITY: own.authority, CERTIFICATE: own.certificate, KEY: own.key}

    @classmethod
    def load(cls, folder: Path) -> JobSecret:
        """Raises EnvironmentNotReady if a file cannot be read or has the wrong content."""
        certificates = Certificates.load(folder)
        try:
            token = (folder / TOKEN).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise EnvironmentNotReady(f"token of the job: {folder / TOKEN}: {why}; mount the job's Secret") from error
        if not _FORM.fullmatch(token):
            raise EnvironmentNotReady(
                f"token of the job: {folder / TOKEN} has {len(token)} characters, expected 64 hexadecimal digits; "
                "mount the Secret that `dynamix k8s` writes"
            )
        return cls(token, certificates)


def tls_context(folder: Path, server: bool) -> ssl.SSLContext:
    """Mutual TLS 1.3 with the certificate in a folder: the other end needs a certificate of the same authority.

    A client wraps its sockets with `server_hostname=NAME`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / AUTHORITY)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")  # asks nobody for one
    return context
