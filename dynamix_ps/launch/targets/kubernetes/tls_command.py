"""Connects to a listening agent: the standard streams of this command become the streams of the agent.

    python -m dynamix_ps.launch.targets.kubernetes.tls_command ADDRESS PORT FOLDER

FOLDER holds the secret of the job. The command line holds no secret.
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from pathlib import Path

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.targets.kubernetes.job_secret import NAME, JobSecret, tls_context
from dynamix_ps.launch.targets.kubernetes.tls_relay import TlsRelay

MODULE = "dynamix_ps.launch.targets.kubernetes.tls_command"

_START_S = 20.0  # until the agent takes connections: less than what the launcher waits for its first word
_TRY_S = 5.0
_AGAIN_S = 0.5


def connected(address: str, port: int, folder: Path, start_s: float = _START_S) -> ssl.SSLSocket:
    """A connection to the agent, after the token was sent. Tries again for a while if nothing listens.

    Raises:
        EnvironmentNotReady: nothing listens, or the listener has no certificate of this job.
    """
    secret, context = JobSecret.load(folder), tls_context(folder, server=False)
    until_s = time.monotonic() + start_s
    while True:
        try:
            plain = socket.create_connection((address, port), _TRY_S)
            connection = context.wrap_socket(plain, server_hostname=NAME)
            connection.sendall(f"{secret.token}\n".encode())
            return connection
        except ssl.SSLCertVerificationError as error:
            raise EnvironmentNotReady(
                f"{address} port {port}: what listens there has no certificate of this job ({error.verify_message}); "
                "give all pods the Secret of one `dynamix k8s`"
            ) from error
        except OSError as error:  # also a name that is not known yet
            if time.monotonic() > until_s:
                why = error.strerror or error
                raise EnvironmentNotReady(f"{address} port {port}: no agent answers ({why})") from error
        time.sleep(_AGAIN_S)


def main() -> int:
    """Entry point. Ends when the launcher closes the standard input, or the agent closes the connection."""
    address, port, folder = sys.argv[1:]
    why = TlsRelay(connected(address, int(port), Path(folder)), 0, 1).run()
    if why:
        raise EnvironmentNotReady(f"{address} port {port}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
