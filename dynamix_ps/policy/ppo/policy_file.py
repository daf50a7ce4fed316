"""One policy in one `.npz`: weights, Adam, normaliser, spaces, provenance and a hash. No pickle."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo.adam import AdamState
from dynamix_ps.policy.ppo.network import Params, finite, initialise
from dynamix_ps.policy.ppo.normalise import Normaliser

FORMAT = "dynamix-ppo"
VERSION = 1

_Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Spaces:
    """What a policy's inputs and outputs mean; two policies fit together only if these are equal."""

    features: tuple[str, ...]
    actions: tuple[int, ...]
    hidden: int


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """Everything needed to go on. `provenance` is free text for people: where the weights come from."""

    params: Params
    adam: AdamState
    normaliser: Normaliser
    spaces: Spaces
    provenance: Mapping[str, Any]


def save_policy(file: Path, stored: StoredPolicy) -> None:
    """Write atomically: a reader sees the old file or the new one, never a part. Raises OSError."""
    arrays: _Arrays = {f"params/{name}": value for name, value in stored.params.items()}
    arrays |= {f"adam.mean/{name}": value for name, value in stored.adam.mean.items()}
    arrays |= {f"adam.square/{name}": value for name, value in stored.adam.square.items()}
    arrays |= {"normaliser/count": stored.normaliser.count, "normaliser/mean": stored.normaliser.mean}
    arrays["normaliser/spread"] = stored.normaliser.spread
    about = {
        "format": FORMAT,
        "version": VERSION,
        "features": stored.spaces.features,
        "actions": stored.spaces.actions,
        "hidden": stored.spaces.hidden,
        "adam_step": stored.adam.step,
        "provenance": dict(stored.provenance),
    }
    arrays["about"] = np.array(json.dumps(about, sort_keys=True))
    arrays["sha256"] = np.array(_digest(arrays))
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    _replace(file, content.getvalue())


def load_policy(file: Path, expected: Spaces) -> StoredPolicy:
    """Read and check a policy file.

    Raises:
        PolicyError: it is missing, truncated, foreign, damaged, of another version or for other spaces.
    """
    arrays = _read(file)
    about = _about(file, arrays)
    digest = str(arrays.get("sha256", "none"))
    if digest != _digest(arrays):
        raise PolicyError(f"{file}: damaged: expected sha256 {digest}, found {_digest(arrays)}; use another copy")
    _check_spaces(file, about, expected)
    try:
        params = _group(arrays, "params/")
        stored = StoredPolicy(
            params=params,
            adam=AdamState(int(about["adam_step"]), _group(arrays, "adam.mean/"), _group(arrays, "adam.square/")),
            normaliser=Normaliser(*(arrays[f"normaliser/{part}"] for part in ("count", "mean", "spread"))),
            spaces=expected,
            provenance=about["provenance"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"{file}: incomplete: {error} is missing or malformed; use another copy") from error
    shapes = {name: value.shape for name, value in _template(expected).items()}
    for found in (params, stored.adam.mean, stored.adam.square):
        if {name: value.shape for name, value in found.items()} != shapes:
            raise PolicyError(f"{file}: arrays do not fit the network: expected {shapes}; use another copy")
    if not finite(params):
        raise PolicyError(f"{file}: a weight is NaN or infinite, expected finite numbers; use an earlier copy")
    return stored


def _read(file: Path) -> _Arrays:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise PolicyError(f"{file}: found a single array, expected a policy (.npz)")
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
        raise PolicyError(f"{file}: not a policy file, or cut off ({error}); expected an .npz of {FORMAT}") from error
    except OSError as error:
        raise PolicyError(f"{file}: cannot be read ({error}); name a policy file in policy.ppo.file") from error


def _about(file: Path, arrays: _Arrays) -> dict[str, Any]:
    try:
        about = json.loads(str(arrays["about"]))
        found = (about["format"], about["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"{file}: found no description of a policy in it, expected {FORMAT} {VERSION}") from error
    if found != (FORMAT, VERSION):
        raise PolicyError(f"{file}: found {found[0]} version {found[1]}, expected {FORMAT} version {VERSION}")
    return dict(about)


def _check_spaces(file: Path, about: Mapping[str, Any], expected: Spaces) -> None:
    for name in ("features", "actions", "hidden"):
        found, wanted = about.get(name), getattr(expected, name)
        if (tuple(found) if isinstance(found, list) else found) != wanted:
            raise PolicyError(f"{file}: {name}: found {found}, expected {wanted}; it was made for other spaces")


def _template(spaces: Spaces) -> Params:
    """Parameters of the shapes that the spaces ask for."""
    return initialise(2 * len(spaces.features), spaces.hidden, len(spaces.actions), np.random.default_rng(0))


def _group(arrays: _Arrays, prefix: str) -> Params:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _digest(arrays: _Arrays) -> str:
    """sha256 over names, types, shapes and bytes of everything but the hash itself."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        if name != "sha256":
            value = np.ascontiguousarray(arrays[name])
            digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
            digest.update(value.tobytes())
    return digest.hexdigest()


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
