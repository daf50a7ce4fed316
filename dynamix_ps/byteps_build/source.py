"""The pinned source package of BytePS: downloaded once with pip, checked, unpacked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from dynamix_ps.byteps_build.pip import pip
from dynamix_ps.errors import BuildError

VERSION = "0.2.5.post15"
FILE_NAME = f"byteps-{VERSION}.tar.gz"
SHA256 = "9d6a3c5be4c4b5a172739744bb32725c433f9a9f63794e1885e7376ff4eea99f"


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch(folder: Path) -> Path:
    """The source package in `folder`; downloaded if it is missing or damaged.

    Raises BuildError if the download fails or the package has another hash.
    """
    path = folder / FILE_NAME
    if path.is_file():
        if file_sha256(path) == SHA256:
            return path
        path.unlink()  # an interrupted download
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        downloaded = _download(Path(scratch))
        got = file_sha256(downloaded)
        if got != SHA256:
            raise _wrong_hash(got)
        os.replace(downloaded, path)
    return path


def _download(folder: Path) -> Path:
    # With --require-hashes pip checks the hash before it runs any code of the package.
    requirements = folder / "requirements.txt"
    requirements.write_text(f"byteps=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ["--timeout", "20", "--retries", "2"]
    options += ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes", "-d", str(folder)]
    done = subprocess.run(
        [*pip(), "download", *options, "-r", str(requirements)],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    path = folder / FILE_NAME
    if done.returncode == 0 and path.is_file():
        return path
    said = done.stdout + done.stderr
    if "DO NOT MATCH THE HASHES" in said:
        got = said.rpartition("Got")[2].split()
        raise _wrong_hash(got[0] if got else "another one")
    errors = [line for line in said.splitlines() if "ERROR" in line] or said.splitlines()
    raise BuildError(
        f"could not download {FILE_NAME} with pip: {' '.join(errors[-2:]) or 'no message'}\n"
        "Next: check the network and pip's index settings (pip config list), "
        f"or fetch the file elsewhere and put it into {folder.parent}/"
    )


def _wrong_hash(got: str) -> BuildError:
    return BuildError(
        f"{FILE_NAME} is not the file this project was made for: sha256 {got}, expected {SHA256}.\n"
        "No code of it was run, and the file is deleted.\n"
        "Next: run this command again; if the error stays, the package index delivers another file."
    )


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the source package into `folder` and return its top folder. Raises BuildError if it is damaged."""
    try:
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it since 3.10.12 and 3.11.4
            tar.extractall(folder)
    except (tarfile.TarError, EOFError) as error:
        raise BuildError(
            f"{archive} is damaged: {error}.\nNext: delete it and run this command again to download it."
        ) from error
    return folder / f"byteps-{VERSION}"
