"""The certificate authority of one run. It lives in the memory of the launcher and ends with it.

The `openssl` command computes keys and signatures. Private keys go through its standard streams, never into a file.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess
import tempfile
import time
from pathlib import Path

from dynamix_ps.certificates import Certificates
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.roles.plan import spans_hosts

DAY_S = 86_400.0
LONGEST_S = 366 * DAY_S  # of a run without a limit
CLOCKS_S = DAY_S  # by which the clocks of the hosts may differ

_WAIT_S = 30.0
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n", re.DOTALL)
_NEW_KEY = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "/dev/stdout")
_REQUEST = """
[req]
distinguished_name = name
req_extensions = extensions
prompt = no
[name]
CN = dynamix {name}
[extensions]
{extensions}
"""
_OF_AUTHORITY = """
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
"""
_OF_HOST = """
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {}
"""
# `openssl ca` is the one command that sets the begin of a certificate in all versions; it wants to keep a list.
_SIGNING = """
[ca]
default_ca = run
[run]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = names
copy_extensions = copy
unique_subject = no
email_in_dn = no
[names]
commonName = supplied
"""


def is_encrypted(config: Config) -> bool:
    """Whether the roles of a job encrypt their calls: a job on several hosts does, unless `insecure` is set."""
    return _calls_between_hosts(config) and not config.cluster.insecure


def is_exposed(config: Config) -> bool:
    """Whether the cluster file lets calls go from host to host in the clear."""
    return _calls_between_hosts(config) and config.cluster.insecure


def _calls_between_hosts(config: Config) -> bool:
    return config.has_arbitrator and spans_hosts(config)


class Authority:
    """Signs the certificates of a run's hosts. Its key is in no file; only `openssl` gets it.

    Args:
        now_s: Unix time.
        valid_s: how long after `now_s` its certificates are valid.

    Raises:
        EnvironmentNotReady: `openssl` is missing or fails.
    """

    def __init__(self, now_s: float, valid_s: float = LONGEST_S) -> None:
        self._period = ("-startdate", _utc(now_s - CLOCKS_S), "-enddate", _utc(now_s + valid_s))
        self._key, request = _new_key("authority", _OF_AUTHORITY)
        self.certificate = ""
        self.certificate = self._sign(request, "-selfsign")

    @classmethod
    def of_run(cls, config: Config) -> Authority | None:
        """The authority of a run that begins now; None if its roles do not encrypt."""
        if not is_encrypted(config):
            return None
        job_s = config.timeouts.job_s
        return cls(time.time(), LONGEST_S if job_s is None else job_s + DAY_S)

    def issue(self, address: str) -> Certificates:
        """A key and a certificate for the host with this address, valid for no other host.

        Raises:
            EnvironmentNotReady: `openssl` fails.
        """
        key, request = _new_key("host", _OF_HOST.format(_alternative_name(address)))
        return Certificates(self.certificate, self._sign(request, "-cert", "ca.crt"), key)

    def _sign(self, request: str, *options: str) -> str:
        with tempfile.TemporaryDirectory(prefix="dynamix-ca-") as folder:
            files = {"ca.cnf": _SIGNING, "index.txt": "", "ca.crt": self.certificate, "of.csr": request}
            for name, text in files.items():
                (Path(folder) / name).write_text(text)
            arguments = ("ca", "-batch", "-notext", "-config", "ca.cnf", "-keyfile", "/dev/stdin", "-in", "of.csr")
            return _openssl((*arguments, *options, *self._period), self._key, folder)


def _new_key(name: str, extensions: str) -> tuple[str, str]:
    """A private key and a request for a certificate with this name and these extensions."""
    output = _openssl((*_NEW_KEY, "-config", "/dev/stdin"), _REQUEST.format(name=name, extensions=extensions))
    key, request = (match.group() for match in _PEM.finditer(output))
    return key, request


def _alternative_name(address: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(address.partition('%')[0])}"
    except ValueError:
        return f"DNS:{address}"


def _utc(unix_s: float) -> str:
    return time.strftime("%y%m%d%H%M%SZ", time.gmtime(unix_s))


def _openssl(arguments: tuple[str, ...], told: str, folder: str | None = None) -> str:
    """Run `openssl` with `told` as its standard input; returns its standard output."""
    advice = "install OpenSSL here, or set `insecure: true` under `cluster`, which switches encryption off"
    try:
        done = subprocess.run(
            ("openssl", *arguments),
            input=told,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
            start_new_session=True,  # Ctrl-C is for the launcher
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer for {_WAIT_S:g} s"
        raise EnvironmentNotReady(f"certificates for the hosts: cannot run openssl: {why}; {advice}") from error
    if done.returncode != 0:
        said = "; ".join(line for line in done.stderr.splitlines() if line.strip())[-500:]
        raise EnvironmentNotReady(f"certificates for the hosts: openssl {arguments[0]} fails: {said}; {advice}")
    return done.stdout
