"""Attacks of another user on the ports and sockets of the data plane; attacks.py has the table."""

from __future__ import annotations

import os
import re
import resource
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import pytest

from benchmarks.testbed.byteps_cluster import SHM
from benchmarks.testbed.ports import free_port
from tests.faults import data_plane_protocol as protocol
from tests.forked_cluster import ForkedCluster
from tests.launching import ROOT
from tests.other_user import as_another_user, needs_another_user

pytestmark = pytest.mark.timeout(120)

LIMIT_S = 100.0
ROLES = ("scheduler", "server-0", "worker-0", "worker-1")

# Sums until the file `go` is there and 50 more rounds are done; all workers leave in the same round. Until then it has
# a pause after each sum, which leaves the cores to others.
SUMMING = """
    import json, os, time, torch
    from dynamix_ps.comm import open_comm

    comm = open_comm("byteps")
    comm.init()
    comm.declare("x")
    wrong, turn, left = 0, 0, 50
    while left:
        turn += 1
        buffer = torch.full((1000,), float(turn * (comm.rank + 1)))
        buffer[0] = float(comm.rank == 0 and os.path.exists("go"))
        assert comm.wait(comm.push_pull("x", buffer), 60.0)
        left -= int(buffer[0] == 1)
        time.sleep(0.005 * (buffer[0] != 1).item())
        wrong += int((buffer[1:] != turn * 3.0).any())
        if turn == 1:
            print("summed", flush=True)
    comm.shutdown()
    print(json.dumps({"wrong": wrong}))
"""


# The same by BytePS's own plugin, through all stages: with its messages, and segments that have names.
STAGED = {"BYTEPS_SCHEDULING_CREDIT": "4"}
SUMMING_BY_PLUGIN = """
    import json, os, time, torch
    import byteps.torch as bps
    from byteps.torch import ops

    bps.init()
    wrong, turn, left = 0, 0, 50
    while left:
        turn += 1
        buffer = torch.full((1000,), float(turn * (bps.rank() + 1)))
        buffer[0] = float(bps.rank() == 0 and os.path.exists("go"))
        ops.synchronize(ops.push_pull_async_inplace(buffer, average=False, name="x"))
        left -= int(buffer[0] == 1)
        time.sleep(0.005 * (buffer[0] != 1).item())
        wrong += int((buffer[1:] != turn * 3.0).any())
        if turn == 1:
            print("summed", flush=True)
    bps.shutdown()
    print(json.dumps({"wrong": wrong}))
"""


def row(key: str) -> pytest.MarkDecorator:
    """The row of the table that a test holds, as its id."""
    return pytest.mark.parametrize("_row", [pytest.param(None, id=key)])


class AttackedCluster(ForkedCluster):
    """A cluster with a token. `tokens` are those of single roles, where they differ."""

    def __init__(self, script: str = SUMMING, tokens: Mapping[str, str] | None = None, **options: Any) -> None:
        self.token = secrets.token_hex(16)
        self._tokens = dict(tokens or {})
        super().__init__(script, env={"DYNAMIX_TOKEN": self.token, **options.pop("env", {})}, **options)

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        if role in self._tokens:
            options["env"]["DYNAMIX_TOKEN"] = self._tokens[role]
        return super()._popen(role, command, **options)

    def __enter__(self) -> AttackedCluster:
        return self

    def wait_until_summing(self) -> None:
        for rank in range(2):
            self.wait_for(f"worker-{rank}", "summed", LIMIT_S)

    def ports(self) -> dict[str, int]:
        """The port on which each role listens."""
        found = {}
        for role in ROLES:
            ports = [
                one.laddr.port
                for one in psutil.Process(self.pid(role)).net_connections("tcp")
                if one.status == psutil.CONN_LISTEN
            ]
            assert len(ports) == 1, (role, ports)
            found[role] = ports[0]
        return found

    def addresses(self, role: str) -> set[str]:
        """The addresses on which a role listens."""
        connections = psutil.Process(self.pid(role)).net_connections("tcp")
        return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}

    def assert_unharmed(self) -> None:
        (self.folder / "go").touch()
        assert self.results(LIMIT_S) == [{"wrong": 0}, {"wrong": 0}]

    def refused(self, role: str) -> int:
        """How many connections a role refused, as it says at its end."""
        found = re.findall(r"connections refused in this run: (\d+)", self.output(role))
        return sum(map(int, found))


def garbage(port: int, token: str) -> None:
    with protocol.connect(port) as connection:
        protocol.say(connection, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(range(256)) * 100)
        assert protocol.is_closed(connection)


def zeromq(port: int, token: str) -> None:
    with protocol.connect(port) as connection:
        protocol.say(connection, b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
        assert protocol.is_closed(connection)


def no_proof(port: int, token: str) -> None:
    for forged in protocol.forged_messages():
        with protocol.connect(port) as connection:
            protocol.say(connection, forged + bytes(200))
            assert protocol.is_closed(connection)


def wrong_token(port: int, token: str) -> None:
    for guess in ("", token[:-1], token + "0", "f" * 32):
        connection, welcome = protocol.greet(port, guess)
        with connection:
            assert not welcome
            assert protocol.is_closed(connection)


def messages_after_a_wrong_token(port: int, token: str) -> None:
    for forged in protocol.forged_messages():
        with protocol.connect(port) as connection:
            protocol.say(connection, protocol.hello("guess", protocol.challenge_of(connection)) + forged)
            assert protocol.is_closed(connection)


def replay(port: int, token: str) -> None:
    """What a worker said on one connection is worth nothing on the next."""
    with protocol.connect(port) as first, protocol.connect(port) as second:
        recorded = protocol.hello(token, protocol.challenge_of(first))
        protocol.challenge_of(second)
        second.sendall(recorded)
        welcome, answer = struct.unpack("<I32s", protocol.receive(second, 36))
        assert (welcome, answer) == (0, bytes(32))
        assert protocol.is_closed(second)


def mirrored_proof(port: int, token: str) -> None:
    """A role proves itself in another way than those who connect to it."""
    with protocol.connect(port) as connection:
        challenge, number = protocol.challenge_of(connection), bytes(32)
        wrong_part = protocol.proof(token, "accepting", challenge, number)
        connection.sendall(struct.pack("<I", protocol.HELLO_MAGIC) + number + wrong_part)
        assert protocol.receive(connection, 36) == bytes(36)


def half_a_greeting(port: int, token: str) -> None:
    with protocol.connect(port) as connection:
        connection.sendall(protocol.hello("guess", protocol.challenge_of(connection))[:40])


DURING_TRAINING: dict[str, Callable[[int, str], None]] = {
    "role-" + function.__name__.replace("_", "-"): function
    for function in (
        garbage,
        zeromq,
        no_proof,
        wrong_token,
        messages_after_a_wrong_token,
        replay,
        mirrored_proof,
        half_a_greeting,
    )
}


def at_once(attack: Callable[[int, str], None], ports: Iterable[int], token: str) -> None:
    """Attack all ports. A role may take 10 s to close a connection."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(attack, token=token), ports))


@pytest.mark.parametrize("key", DURING_TRAINING)
def test_strangers_change_nothing(key: str) -> None:
    with AttackedCluster() as cluster:
        cluster.wait_until_summing()
        as_another_user(partial(at_once, DURING_TRAINING[key], cluster.ports().values(), cluster.token))
        cluster.assert_unharmed()
        for role in ROLES:
            assert cluster.output(role).count("refused a connection from 127.0.0.1: ") == 1
            assert cluster.refused(role) >= 1


@row("role-idle-connections")
def test_idle_connections_use_up_nothing(_row: None) -> None:
    """400 connections that say nothing, to roles that may open 256 files."""
    with AttackedCluster() as cluster:
        cluster.wait_until_summing()
        for role in ROLES:
            resource.prlimit(cluster.pid(role), resource.RLIMIT_NOFILE, (256, 256))

        def idle() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            held = [protocol.connect(port) for port in ports for _ in range(400)]
            for port in ports:  # a stranger who does speak is still answered, so the role is not stuck
                connection, welcome = protocol.greet(port, "guess")
                connection.close()
                assert not welcome
            for connection in held[::400]:  # the oldest of each role
                assert protocol.is_closed(connection)

        ports = list(cluster.ports().values())
        as_another_user(idle)
        cluster.assert_unharmed()


@row("role-no-descriptor-left")
def test_connections_wait_where_no_descriptor_is_left(_row: None) -> None:
    with AttackedCluster() as cluster:
        cluster.wait_until_summing()
        server = cluster.pid("server-0")
        port = cluster.ports()["server-0"]
        usual = resource.prlimit(server, resource.RLIMIT_NOFILE)
        resource.prlimit(server, resource.RLIMIT_NOFILE, (3, usual[1]))  # fewer than are open
        with protocol.connect(port) as connection:
            cluster.wait_for("server-0", "no file descriptor is left for new connections", LIMIT_S)
            resource.prlimit(server, resource.RLIMIT_NOFILE, usual)
            assert protocol.challenge_of(connection)
        cluster.assert_unharmed()


@row("role-flood-at-start")
def test_roles_find_each_other_while_strangers_fill_the_scheduler(_row: None) -> None:
    """The workers come when many strangers have connected."""
    come_later = SUMMING.replace(
        "    comm.init()", "    while not os.path.exists('flooded'):\n        time.sleep(0.01)\n    comm.init()"
    )
    reading, writing = os.pipe()
    with AttackedCluster(come_later) as cluster, open(reading, "rb") as told:
        port = int(psutil.Process(cluster.pid("scheduler")).environ()["DMLC_PS_ROOT_PORT"])

        def flood() -> None:
            held: list[socket.socket] = []
            while True:
                try:
                    held = [*held[-500:], protocol.connect(port)]
                    if len(held) == 500:
                        os.write(writing, b"flooded")
                except ConnectionRefusedError:
                    if held:  # the scheduler has ended
                        return

        child = os.fork()
        if child == 0:
            try:
                as_another_user(flood)
            finally:
                os._exit(0)
        os.close(writing)
        try:
            assert told.read(7) == b"flooded"
            (cluster.folder / "flooded").touch()
            cluster.wait_until_summing()
            cluster.assert_unharmed()
            assert cluster.refused("scheduler") > 300
        finally:
            os.waitpid(child, 0)


def test_a_role_with_another_token_stops_and_says_so() -> None:
    with AttackedCluster(tokens={"worker-1": "another"}) as cluster:
        ended = cluster.wait("worker-1", LIMIT_S)
        assert ended.returncode != 0
        assert "has another DYNAMIX_TOKEN than this process" in ended.output
        cluster.wait_for("scheduler", "it does not know this run's token", LIMIT_S)


@row("role-impostor")
def test_nothing_is_sent_to_somebody_else_at_the_schedulers_port(_row: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        environment = {
            "DMLC_ROLE": "server",
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(impostor.getsockname()[1]),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DYNAMIX_TOKEN": "secret",
            "PYTHONPATH": str(ROOT),
        }
        with subprocess.Popen(
            [sys.executable, "-c", "import byteps.server"], env=os.environ | environment, stderr=subprocess.PIPE
        ) as role:
            try:
                connection, _ = impostor.accept()
                connection.settimeout(20.0)
                connection.sendall(struct.pack("<I", protocol.HELLO_MAGIC) + bytes(32))
                assert len(protocol.receive(connection, 68)) == 68
                connection.sendall(struct.pack("<I", 1) + bytes(32))
                assert protocol.receive(connection, 1) == b""
                _, said = role.communicate(timeout=20)
            finally:
                role.kill()
        assert role.returncode != 0
        assert b"does not know this run's token; nothing was sent to it" in said


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        pytest.param(protocol.huge_push(), "bytes in part 1 of a message of node 9", id="2^39 bytes"),
        pytest.param(protocol.push_of(bytes(4001)), "bytes in part 1 of a message of node 9", id="more than declared"),
        pytest.param(protocol.push_of(bytes(2**10))[:-1] + bytes(2**20), "header that makes no sense", id="garbled"),
    ],
)
def test_a_role_of_the_run_that_breaks_the_protocol_ends_it_with_the_cause(broken: bytes, cause: str) -> None:
    """The same bytes with the token: they are read, so that the tests above are about the token."""
    with AttackedCluster(SUMMING_BY_PLUGIN) as cluster:
        cluster.wait_until_summing()
        connection, welcome = protocol.greet(cluster.ports()["server-0"], cluster.token)
        with connection:
            assert welcome
            protocol.say(connection, broken)
            ended = cluster.wait("server-0", LIMIT_S)
        assert ended.returncode != 0
        assert cause in ended.output


def test_without_a_token_the_scheduler_says_so_once() -> None:
    with ForkedCluster(SUMMING) as cluster:
        (cluster.folder / "go").touch()
        assert cluster.results(LIMIT_S) == [{"wrong": 0}, {"wrong": 0}]
        said = "DYNAMIX_TOKEN is not set: whoever reaches the ports of this run can take part in it"
        assert cluster.output("scheduler").count(said) == 1
        assert not any("DYNAMIX_TOKEN" in cluster.output(role) for role in ("server-0", "worker-0", "worker-1"))


@pytest.mark.parametrize("servers", [1, 0], ids=["byteps", "gloo"])
def test_both_planes_work_over_ipv6(servers: int) -> None:
    ipv6 = {"DMLC_PS_ROOT_URI": "::1", "DMLC_NODE_HOST": "::1"}
    script = SUMMING if servers else SUMMING.replace('"byteps"', '"gloo"')
    with AttackedCluster(script, servers=servers, env=ipv6) as cluster:
        cluster.wait_until_summing()
        addresses = cluster.addresses("worker-0") | cluster.addresses("server-0" if servers else "worker-1")
        assert "::1" in addresses
        assert addresses <= {"::1", "127.0.0.1"}
        cluster.assert_unharmed()


@row("store-garbage")
def test_the_store_of_gloo_listens_on_the_configured_host_only(_row: None) -> None:
    port = free_port()
    script, environment = SUMMING.replace('"byteps"', '"gloo"'), {"DMLC_PS_ROOT_PORT": str(port)}
    with AttackedCluster(script, servers=0, env=environment) as cluster:
        cluster.wait_until_summing()
        assert {address for rank in range(2) for address in cluster.addresses(f"worker-{rank}")} == {"127.0.0.1"}

        def attack() -> None:
            connections = [protocol.connect(port) for _ in range(100)]
            for connection in connections[:50]:
                protocol.say(connection, os.urandom(100_000))

        as_another_user(attack)
        cluster.assert_unharmed()


@row("worker-files")
@needs_another_user
def test_sockets_and_segments_are_closed_to_others(_row: None) -> None:
    with AttackedCluster(SUMMING_BY_PLUGIN, env=STAGED) as cluster:
        cluster.wait_until_summing()
        sockets = [path for path in cluster.folder.glob("sockets-*/*") if path.is_socket()]
        segments = [SHM / name for name in cluster.segments()]
        assert sockets and len(segments) == 2
        for folder in (cluster.folder, *cluster.folder.glob("sockets-*")):
            folder.chmod(0o755)  # the launcher's are closed too

        def attack() -> None:
            for path in segments:
                with pytest.raises(PermissionError):
                    os.open(path, os.O_RDONLY)
            for path in sockets:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, pytest.raises(PermissionError):
                    sender.sendto(bytes(16), str(path))

        as_another_user(attack)
        cluster.assert_unharmed()
