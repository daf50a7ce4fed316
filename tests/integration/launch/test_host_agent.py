"""The agent of a host, told by messages: what it answers, in which order, and that it leaves nothing."""

from __future__ import annotations

import os
import re
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dynamix_ps.config.load import dump_config
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.launch.host.host_agent import HostAgent
from dynamix_ps.launch.messages.agent_messages import (
    Begin,
    CleanedUp,
    CleanUp,
    FilePart,
    FromAgent,
    Prepare,
    Prepared,
    RequestRefused,
    RoleEnded,
    RoleOutput,
    Signal,
    StartAgain,
    Started,
    Suspended,
)
from tests.launching import HOOK, assert_nothing_left, environment, reapers_of, scratch_of, wait_for

pytestmark = pytest.mark.timeout(60)

RUN_ID = f"{os.getpid():08x}"
TRAINS = HOOK + "started(); print('training', flush=True)\nwhile True: time.sleep(0.05)\n"
ENDS = "started(); print('rank', rank, os.environ['DMLC_PS_ROOT_URI']); finished(); sys.exit(3)"

READS_CERTIFICATES = """
folder = os.environ["DYNAMIX_TLS"]
texts = [open(os.path.join(folder, name)).read() for name in ("ca.crt", "tls.crt", "tls.key")]
started(); print(f"certificates in {folder}:", ", ".join(texts)); finished()
"""


class Rig:
    """An agent in a loop of the test, with all its answers."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder, self.got = folder, list[FromAgent]()
        (folder / "worker.py").write_text(script)
        self.selector = selectors.DefaultSelector()
        self.room = True
        self.agent = HostAgent(self.selector, self.got.append, environment(), has_room=lambda: self.room)

    def prepare(self, mode: str = "off", **changes: str) -> None:
        hosts = {"a": {"slots": 1}, "b": {"slots": 1}}
        data = {"cluster": {"hosts": hosts, "workers": ({}, {})}, "comm": "gloo", "mode": mode}
        config = dump_config(resolved(Config.model_validate({**data, "command": ("python", "worker.py")})))
        wanted = {"run_id": RUN_ID, "host": "b", "cwd": str(self.folder), "run_dir": "", "config": config}
        self.agent.receive(Prepare(**{**wanted, "peers": (), "resume": "", "token": "secret", **changes}))

    def all(self, kind: type) -> list[FromAgent]:
        return [message for message in self.got if isinstance(message, kind)]

    def until(self, condition: Callable[[], object], what: str) -> None:
        def step() -> object:
            for key, _ in self.selector.select(0.02):
                key.data()
            self.agent.tick()
            return condition()

        wait_for(step, what)


@pytest.fixture
def new_rig(tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    """Makes agents, which go to the folder of their job; closes them, and comes back."""
    before, rigs = Path.cwd(), list[Rig]()

    def make(script: str) -> Rig:
        rigs.append(Rig(tmp_path, script))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.agent.close()
    os.chdir(before)


def prepared(rig: Rig) -> Rig:
    rig.prepare()
    assert rig.got == [Prepared("b", 0, 0, "none: every worker runs as fast as the machine lets it")], rig.got
    return rig


def test_one_run_from_prepare_to_finished(new_rig: Callable[[str], Rig]) -> None:
    rig = prepared(new_rig(HOOK + ENDS))
    rig.agent.receive(Begin({"a": "10.0.0.1", "b": "10.0.0.2"}, 20001, 20002))
    rig.until(lambda: rig.all(RoleEnded), "the end of the role")
    told = [message for message in rig.got if not isinstance(message, (Prepared, FilePart))]
    assert told[0] == Started("worker-1")
    assert b"".join(message.data for message in told if isinstance(message, RoleOutput)) == b"rank 1 10.0.0.1\n"
    assert isinstance(told[-1], RoleEnded)
    assert (told[-1].role, told[-1].exit_code) == ("worker-1", 3)
    parts = [message for message in rig.got[: rig.got.index(told[-1])] if isinstance(message, FilePart)]
    content = b"".join(part.data for part in parts if part.path == "workers/worker-1.jsonl")
    assert b'"started"' in content and b'"finished"' in content, "what a role has written comes before its end"
    rig.agent.receive(CleanUp())
    assert rig.got[-1] == CleanedUp()
    wait_for(lambda: not reapers_of(RUN_ID), "the reaper")
    assert_nothing_left(RUN_ID)


def test_a_host_that_comes_back_starts_nobody_before_it_is_told(new_rig: Callable[[str], Rig]) -> None:
    rig = prepared(new_rig("import os; print('start', os.environ['DYNAMIX_STARTS'])"))
    rig.agent.receive(Begin({}, 20001, 20002, late=True))
    rig.agent.tick()
    assert not rig.all(Started)
    rig.agent.receive(StartAgain("worker-1", 2))
    rig.until(lambda: rig.all(RoleEnded), "the end of the role")
    assert b"".join(one.data for one in rig.got if isinstance(one, RoleOutput)) == b"start 2\n"


def test_an_agent_waits_for_the_end_of_an_earlier_one_of_its_run(
    new_rig: Callable[[str], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends what it has started knows it by run and host."""
    monkeypatch.setattr("dynamix_ps.launch.host.host_agent._EARLIER_AGENT_S", 0.3)
    earlier = prepared(new_rig(TRAINS))
    later = new_rig(TRAINS)
    later.prepare()
    (refused,) = later.all(RequestRefused)
    assert (
        isinstance(refused, RequestRefused) and "host b: an earlier agent of this run has not ended" in refused.reason
    )
    earlier.agent.close()
    prepared(new_rig(TRAINS))


def test_roles_find_the_certificates_of_their_host_until_the_end(new_rig: Callable[[str], Rig]) -> None:
    rig = new_rig(HOOK + READS_CERTIFICATES)
    rig.prepare(mode="observe")
    made = {"authority": "an authority", "certificate": "a certificate", "key": "a key"}
    rig.agent.receive(Begin({"a": "10.0.0.1", "b": "10.0.0.2"}, 20001, 20002, made))
    rig.until(lambda: rig.all(RoleEnded), "the end of the role")
    said = b"".join(message.data for message in rig.got if isinstance(message, RoleOutput)).decode()
    folder = re.fullmatch(r"certificates in (/.*): an authority, a certificate, a key\n", said)
    assert folder, said
    rig.agent.receive(CleanUp())
    assert not Path(folder[1]).exists()


def test_roles_are_stopped_and_what_holds_them_is_told(new_rig: Callable[[str], Rig]) -> None:
    rig = prepared(new_rig(TRAINS))
    rig.agent.receive(Begin({}, 20001, 20002))
    rig.until(lambda: rig.all(RoleOutput), "output")
    for number, suspended in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        rig.agent.receive(Signal(("worker-1", "worker-0"), number))
        rig.until(lambda: rig.got[-1] == Suspended("worker-1", suspended), "the state of the role")  # noqa: B023
    rig.agent.receive(Signal(("worker-1",), signal.SIGKILL))
    rig.until(lambda: rig.all(RoleEnded), "the end of the role")
    rig.agent.close()
    assert_nothing_left(RUN_ID)


def test_closing_ends_what_runs_and_removes_everything(new_rig: Callable[[str], Rig]) -> None:
    rig = prepared(new_rig(TRAINS))
    (scratch,) = scratch_of(RUN_ID)
    assert scratch.stat().st_mode & 0o077 == 0
    rig.agent.receive(Begin({}, 20001, 20002))
    rig.until(lambda: rig.all(RoleOutput), "output")
    assert list(processes_of(RUN_ID, "b"))
    assert not list(processes_of(RUN_ID, "a")), "roles of another host are not touched"
    rig.agent.close()
    rig.agent.close()
    wait_for(lambda: not reapers_of(RUN_ID), "the reaper")
    assert_nothing_left(RUN_ID)


def test_while_the_launcher_takes_nothing_a_role_waits_with_its_output(new_rig: Callable[[str], Rig]) -> None:
    rig = prepared(new_rig(TRAINS))
    rig.room = False
    rig.agent.tick()
    rig.agent.receive(Begin({}, 20001, 20002))
    (scratch,) = scratch_of(RUN_ID)
    rig.until((scratch / "run" / "workers" / "worker-1.jsonl").exists, "the first line of the role")
    for _ in range(20):
        rig.until(lambda: True, "a turn")
    assert not rig.all(RoleOutput)
    rig.room = True
    rig.until(lambda: rig.all(RoleOutput), "output")
    rig.agent.close()


def test_what_cannot_be_done_is_refused(new_rig: Callable[[str], Rig]) -> None:
    rig = new_rig(TRAINS)
    rig.agent.receive(Begin({}, 1, 2))
    assert rig.got[-1] == RequestRefused(3, "the launcher sent a message before Prepare; use one version on all hosts")
    rig.prepare(config="cluster: {workers: 3}\n")
    assert isinstance(rig.got[-1], RequestRefused)
    assert rig.got[-1].exit_code == 2
    assert "cluster.workers: must be a list" in rig.got[-1].reason
    rig.agent.receive(FilePart("../x", 0, -1, b""))
    assert isinstance(rig.got[-1], RequestRefused)
    rig.agent.close()
    assert scratch_of(RUN_ID) == []
