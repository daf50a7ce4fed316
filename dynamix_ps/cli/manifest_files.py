"""Manifests of Kubernetes as YAML, on the output or as files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.targets.kubernetes.pod_template import Manifest


def write_manifests(made: Mapping[str, Manifest], out: Path | None) -> None:
    """Print them, or write a file each into the new folder `out`, which only this user reads.

    Raises UsageError if the folder is there, EnvironmentNotReady if it cannot be written.
    """
    texts = {name: yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=120) for name, manifest in made.items()}
    if out is None:
        click.echo("---\n".join(texts.values()), nl=False)
        return
    try:
        out.mkdir(mode=0o700, parents=True)
        for number, (name, text) in enumerate(texts.items(), 1):
            path = out / f"{number}-{name}.yaml"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            click.echo(f"written: {path}")
    except FileExistsError as error:
        raise UsageError(f"{out}: is there already; remove it, or choose another folder with -o") from error
    except OSError as error:
        raise EnvironmentNotReady(f"cannot write {error.filename}: {error.strerror}; choose another with -o") from error
    click.echo(f"next:    kubectl apply -f {out}")


class _Dumper(yaml.SafeDumper):
    """Writes each value in full, and texts of several lines as people read them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
