"""The certificates of one host, with which its roles encrypt their calls and prove that they belong to the run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from dynamix_ps.errors import EnvironmentNotReady

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"  # files of a folder, named as in a Secret of Kubernetes

OFF = "off"  # stands for a folder where calls are not encrypted


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts.

    Attributes:
        authority: certificate of the authority, which has signed those of all hosts of the run.
        certificate: of this host, for the address under which the others reach it.
        key: private key of `certificate`.
    """

    authority: str
    certificate: str
    key: str = field(repr=False)

    def save(self, folder: Path) -> None:
        """Write the files of a new folder, which this user alone can read."""
        folder.mkdir(mode=0o700)
        for name, text in ((AUTHORITY, self.authority), (CERTIFICATE, self.certificate), (KEY, self.key)):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)

    @classmethod
    def load(cls, folder: Path) -> Certificates:
        """Raises EnvironmentNotReady if a file cannot be read, or key and certificate are no pair."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            texts = [(folder / name).read_text(encoding="ascii") for name in (AUTHORITY, CERTIFICATE, KEY)]
            context.load_verify_locations(cadata=texts[0])
            context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")  # asks nobody for one
        except (OSError, ValueError) as error:  # SSLError is an OSError
            what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            raise EnvironmentNotReady(
                f"certificates: {what}; expected in {folder} the PEM files {AUTHORITY} (of the authority), "
                f"{CERTIFICATE} and {KEY} (of this host)"
            ) from error
        return cls(*texts)
