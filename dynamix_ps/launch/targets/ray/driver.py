"""The driver of a launch in Ray: takes places for the workers, and carries the streams of the nodes' agents.

The launcher starts it as `python -m dynamix_ps.launch.targets.ray.driver WORKERS CPUS` (allocation.py): Ray has threads
and signal handlers of its own, which are not for the launcher. The driver answers in lines of JSON: that it waits, why
there are no places, or `RayPlacement`. Then it serves the commands of stream.py until its input closes, and leaves Ray,
which ends the actors and frees the places.

The only module that imports Ray.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import grpc
import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.targets.ray.agent import PIECE_BYTES, NodeAgent
from dynamix_ps.launch.targets.ray.allocation import ADDRESS, RayNode, RayPlacement
from dynamix_ps.launch.targets.ray.stream import listen, received_streams, tell_end

_ANSWER_S = 5.0  # of the address; Ray itself tries for minutes
_PLACE_S = 300.0  # a cluster that grows by itself takes minutes for a node
_SAY_S = 3.0
_START_S = 120.0  # of an actor, with the environment of the job on its node
_POLL_S = 1.0
_CLOSE_S = 5.0
_LAST_LINES = 2


class Driver:
    """The places and actors of a launch in Ray.

    Args:
        launcher_gone: set when the launcher has ended or has closed the input.
        answer: sends a line to the launcher.
    """

    def __init__(self, launcher_gone: threading.Event, answer: Callable[[dict[str, Any]], None]) -> None:
        self._gone, self._answer = launcher_gone, answer
        self._agents: dict[str, Any] = {}  # actors, by the id of the node
        self._carrying: list[threading.Thread] = []

    def take(self, workers: int, cpus: int) -> tuple[RayNode, ...]:
        """Take a place for each worker, and start an actor on every node that has one.

        A place has so many CPUs, and a GPU if the cluster has one per place. Ray says on which nodes the places are.

        Raises:
            EnvironmentNotReady: Ray has no such places, or an actor does not start.
        """
        gpus = ray.cluster_resources().get("GPU", 0) >= workers
        place = {"CPU": cpus, "GPU": 1} if gpus else {"CPU": cpus}
        group = placement_group([place] * workers, strategy="PACK")
        self._wait(group, workers, place)
        indices: dict[str, list[int]] = {}  # of places, by the id of the node
        for index, node in sorted(placement_group_table(group)["bundles_to_node_id"].items()):
            indices.setdefault(node, []).append(int(index))
        actor = ray.remote(max_concurrency=4)(NodeAgent)
        for node, here in indices.items():
            there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=here[0])
            self._agents[node] = actor.options(num_cpus=cpus, scheduling_strategy=there).remote(not gpus)
        devices = [_gpu(group, index) for index in range(workers)] if gpus else []
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        try:
            ray.get([agent.is_up.remote() for agent in self._agents.values()], timeout=_START_S)
            numbers = [int(found[0]) for found in ray.get(devices, timeout=_START_S)]
        except (RayError, TypeError, ValueError) as error:
            raise EnvironmentNotReady(f"Ray cannot start an actor on a node of the job: {last_lines(error)}") from error
        return tuple(
            RayNode(node, addresses[node], len(here), tuple(numbers[index] for index in here if gpus))
            for node, here in indices.items()
        )

    def serve(self, listener: socket.socket) -> None:
        """Carry the streams of every command that connects, until the launcher is gone."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self._gone.wait()
        deadline_s = time.monotonic() + _CLOSE_S
        for thread in list(self._carrying):  # the launcher has closed their streams
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _wait(self, group: Any, workers: int, place: Mapping[str, int]) -> None:
        what = f"{workers} workers with {_words(place)} each"
        began_s, said = time.monotonic(), False
        while not group.wait(_POLL_S):
            waited_s = time.monotonic() - began_s
            if self._gone.is_set():
                raise EnvironmentNotReady("the launcher has ended")
            if waited_s > _PLACE_S:
                free = {name: ray.available_resources().get(name, 0) for name in place}
                raise EnvironmentNotReady(
                    f"Ray has had no place for {what} within {_PLACE_S:g} s (free: {_words(free)}); see `ray status`, "
                    "and give the cluster file fewer workers or the cluster more nodes"
                )
            if waited_s > _SAY_S and not said:
                said = True
                self._answer({"waiting": f"waiting until Ray has places for {what}"})

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            thread = threading.Thread(target=self._carry, args=(connection,), daemon=True)
            self._carrying.append(thread)
            thread.start()

    def _carry(self, connection: socket.socket) -> None:
        """Start the agent of a node, and carry its streams until it has ended."""
        received = received_streams(connection)
        if received is None:
            return
        node, streams = received
        reading, writing, errors = streams
        exit_code = EnvironmentNotReady.exit_code
        try:
            agent = self._agents[node]
            ray.get(agent.start.remote())
            threading.Thread(target=_send, args=(agent, os.dup(reading)), daemon=True).start()
            exit_code = _receive(agent, writing, errors)
        except RayError as error:
            _write(errors, f"{last_lines(error)}\n".encode())
        finally:
            for stream in streams:
                os.close(stream)
            tell_end(connection, exit_code)


def _gpu(group: Any, index: int) -> Any:
    """A task that runs in a place and returns the GPU of the place."""
    there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    return ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy=there)(ray.get_gpu_ids).remote()


def _send(agent: Any, reading: int) -> None:
    """Pass the launcher's bytes to the agent, piece by piece, and the end of the stream."""
    with os.fdopen(reading, "rb", buffering=0) as stream, contextlib.suppress(RayError):
        while data := stream.read(PIECE_BYTES):
            ray.get(agent.send.remote(data))  # a call at a time keeps the order
        ray.get(agent.send.remote(b""))


def _receive(agent: Any, writing: int, errors: int) -> int:
    """Pass the bytes of an agent to the launcher until the agent ends. Returns its exit code."""
    while True:
        said, complained, exit_code = ray.get(agent.receive.remote(_POLL_S))
        _write(writing, said)
        _write(errors, complained)
        if exit_code is not None:
            return int(exit_code)


def _write(writing: int, data: bytes) -> None:
    """Write all bytes, waiting if need be. Writes nothing to a launcher that is gone."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(writing, data) :]


def last_lines(error: BaseException) -> str:
    """The last lines of Ray's text about an error: they have the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-_LAST_LINES:]) or type(error).__name__


def _words(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in resources.items())


def _watch(gone: threading.Event) -> None:
    """Wait for the end of the launcher: the input of this process closes then."""
    while os.read(0, PIECE_BYTES):
        pass
    gone.set()
    if not ray.is_initialized():
        os._exit(EnvironmentNotReady.exit_code)  # it may wait for Ray for a minute, and holds nothing yet


def check_answers(environ: Mapping[str, str]) -> None:
    """Raises EnvironmentNotReady if RAY_ADDRESS is a host and a port, and nothing speaks gRPC there.

    With the TLS of Ray this is not checked: only Ray can connect.
    """
    address = environ[ADDRESS]
    if ":" not in address or environ.get("RAY_USE_TLS", "0") != "0":
        return
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        try:
            grpc.channel_ready_future(channel).result(_ANSWER_S)
        except grpc.FutureTimeoutError:
            raise EnvironmentNotReady(
                f"no Ray answers at {ADDRESS}={address} within {_ANSWER_S:g} s; start the cluster or correct the "
                f"address (see `ray status`), or unset {ADDRESS} to launch without Ray"
            ) from None


def _connect() -> None:
    """Raises EnvironmentNotReady."""
    check_answers(os.environ)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)  # RAY_ADDRESS says where
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise EnvironmentNotReady(
            f"cannot connect to Ray at {ADDRESS}={os.environ.get(ADDRESS)}: {last_lines(error)}; "
            "launch on a node of the cluster, such as by `ray job submit -- dynamix launch ...`"
        ) from error
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # are for the launcher; Ray has set handlers


def main(arguments: Sequence[str]) -> int:
    """Entry point. All prints of Ray go to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(words: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(words), file=answers, flush=True)

    gone = threading.Event()
    threading.Thread(target=_watch, args=(gone,), daemon=True).start()
    workers, cpus = map(int, arguments)
    try:
        _connect()
        driver = Driver(gone, answer)
        nodes = driver.take(workers, cpus)
        listener, name = listen()
        answer(asdict(RayPlacement(nodes, name)))
        driver.serve(listener)
    except EnvironmentNotReady as error:
        answer({"refused": str(error)})
        return error.exit_code
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
