"""A stand-in for the few calls of Ray that a launch makes: actors are objects of the process that makes them.

The variable FAKE_RAY has, as JSON, what the cluster is: `nodes` (addresses by id), `places` (the node of each place),
`gpus` (the GPU of each place), `refuses` (why it cannot be reached), `full` (it has no place), `log` (a file with what
was asked of it), and `lost` (a file; while it is there, node n2 is gone).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

_threads = ThreadPoolExecutor(32)
_LOST = "The actor died before finishing this task.\n\tThe actor is dead because its node has died. Node Id: n2"


class RayError(Exception):
    pass


def install(folder: Path) -> None:
    """Write a package `ray` into a folder."""
    files = {
        "__init__": Path(__file__).read_text(),
        "exceptions": "from ray import RayError\n",
        "util/__init__": "",
        "util/placement_group": "from ray import placement_group, placement_group_table\n",
        "util/scheduling_strategies": "from ray import PlacementGroupSchedulingStrategy\n",
    }
    (folder / "ray" / "util").mkdir(parents=True)
    for name, text in files.items():
        (folder / "ray" / f"{name}.py").write_text(text)


def _cluster() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(os.environ["FAKE_RAY"])
    return told


def _note(words: str) -> None:
    with Path(_cluster()["log"]).open("a") as log:
        log.write(f"{words}\n")


def init(**options: object) -> None:
    if "refuses" in _cluster():
        raise ConnectionError(_cluster()["refuses"])


def is_initialized() -> bool:
    return True


def shutdown() -> None:
    _note("shutdown")


def cluster_resources() -> dict[str, float]:
    return {"CPU": 8.0, "GPU": float(len(_cluster().get("gpus", ())))}


def available_resources() -> dict[str, float]:
    return {"CPU": 1.0}


def nodes() -> list[dict[str, str]]:
    return [{"NodeID": node, "NodeManagerAddress": address} for node, address in _cluster()["nodes"].items()]


def get(awaited: Any, timeout: float | None = None) -> Any:
    if isinstance(awaited, list):
        return [get(one, timeout) for one in awaited]
    return awaited.result(timeout)


def get_gpu_ids() -> list[int]:
    raise AssertionError("is asked on a node")


def remote(**options: Any) -> Callable[[Any], Any]:
    return lambda what: _Class(what) if isinstance(what, type) else _Task(options["scheduling_strategy"])


class PlacementGroupSchedulingStrategy:
    def __init__(self, group: object, placement_group_bundle_index: int) -> None:
        self.index = placement_group_bundle_index


class _Group:
    def wait(self, timeout_s: float) -> bool:
        return "full" not in _cluster()


def placement_group(places: Sequence[dict[str, float]], strategy: str) -> _Group:
    _note(f"{strategy} {json.dumps(places)}")
    return _Group()


def placement_group_table(group: _Group) -> dict[str, Any]:
    return {"bundles_to_node_id": dict(enumerate(_cluster()["places"]))}


class _Task:
    def __init__(self, strategy: PlacementGroupSchedulingStrategy) -> None:
        self._index = strategy.index

    def remote(self) -> Future[Any]:
        return _threads.submit(lambda: [_cluster()["gpus"][self._index]])


class _Class:
    def __init__(self, what: type) -> None:
        self._what, self._node = what, ""

    def options(self, num_cpus: int, scheduling_strategy: PlacementGroupSchedulingStrategy) -> _Class:
        self._node = _cluster()["places"][scheduling_strategy.index]
        return self

    def remote(self, *arguments: object) -> _Actor:
        return _Actor(self._what(*arguments), self._node)


class _Actor:
    def __init__(self, what: object, node: str) -> None:
        self._what, self._node = what, node

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._what, name), self._node)


class _Method:
    def __init__(self, call: Callable[..., object], node: str) -> None:
        self._call, self._node = call, node

    def remote(self, *arguments: object) -> Future[Any]:
        return _threads.submit(self._on_its_node, *arguments)

    def _on_its_node(self, *arguments: object) -> object:
        result = self._call(*arguments)
        if self._node == "n2" and Path(_cluster()["lost"]).exists():
            raise RayError(_LOST)
        return result
