"""The image of docker/Dockerfile: what it copies is there, and its packages come from lock files by their hashes."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.launching import ROOT

LOCKS = ("requirements/image.lock", "requirements/torch.lock", "requirements/torch-cpu.lock")


def stages() -> list[list[str]]:
    """The instructions of each stage, a line each; what stands before the first one is left out."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    starts = [number for number, line in enumerate(whole) if line.startswith("FROM ")]
    return [
        [line for line in whole[start:end] if line]
        for start, end in zip(starts, [*starts[1:], len(whole)], strict=True)
    ]


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package of a lock file."""
    found = {}
    for block in re.split(r"\n(?=\w)", (ROOT / name).read_text().strip()):
        package, version = block.split()[0].split("==")
        found[package] = (version.partition("+")[0], frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})", block)))
    return found


def needed(roots: Sequence[str]) -> set[str]:
    """Names of all packages that these requirements need here, by what is installed."""
    found: set[str] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        one = waiting.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            other = Requirement(line)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in (*one.extras, "")):
                waiting.append(other)
    return found


def test_what_is_copied_into_it_is_there() -> None:
    copied = [line.split()[1:-1] for stage in stages() for line in stage if line.startswith("COPY ")]
    sources = [source for words in copied if not words[0].startswith("--from=") for source in words]
    assert "requirements" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert [source for source in sources if not any(fnmatch(source, pattern) for pattern in sent)] == []


def test_every_package_of_the_lock_files_has_hashes_and_they_agree_with_those_of_the_tests() -> None:
    tested = locked("requirements/main.lock") | locked("requirements/without-mxnet.lock")
    for name in LOCKS:
        for package, (version, hashes) in locked(name).items():
            assert hashes, f"{name}: {package}"
            if package in tested:
                assert (version, hashes) == tested[package], f"{name}: {package}"
    assert locked("requirements/torch.lock")["torch"][0] == locked("requirements/torch-cpu.lock")["torch"][0]


def test_the_lock_file_of_the_image_has_what_the_package_needs_and_nothing_else() -> None:
    own = [line for line in importlib.metadata.requires("dynamix-ps") or () if "extra ==" not in line]
    expected = needed([*own, "torch", "setuptools", "wheel"]) - {"torch"}
    assert set(locked("requirements/image.lock")) == expected | {"nvidia-ml-py"}


def test_pip_takes_nothing_but_what_is_locked() -> None:
    installs = re.findall(r"pip install [^|;&\n]*", "\n".join(stages()[0]))
    assert len(installs) == 3
    for install in installs:
        assert "--no-deps" in install
        assert "--require-hashes" in install or install.rstrip().endswith("--no-build-isolation .")


@pytest.mark.parametrize(
    ("device", "code", "lock"),
    [("cpu", 0, "requirements/torch-cpu.lock"), ("cuda", 0, "requirements/torch.lock"), ("tpu", 2, None)],
)
def test_the_device_chooses_the_build_of_torch(tmp_path: Path, device: str, code: int, lock: str | None) -> None:
    (command,) = [line.removeprefix("RUN ") for line in stages()[0] if line.startswith("RUN case")]
    (tmp_path / "pip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pip").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DEVICE": device, "PIP_OPTIONS": "--pre"}
    done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if lock is None:
        assert "DEVICE=tpu: expected cpu or cuda" in done.stderr
    else:
        assert done.stdout.split()[-3:] == ["--pre", "-r", lock]


def test_it_runs_without_a_compiler_and_as_no_root() -> None:
    last = stages()[-1]
    packages = [word for line in last if "apt-get install" in line for word in line.split()]
    assert packages
    assert not [word for word in packages if word in ("g++", "gcc", "make") or word.endswith("-dev")]
    assert [line for line in last if line.startswith("USER ")] == ["USER 1000"]
