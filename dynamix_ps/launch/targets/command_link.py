"""Agents behind the standard streams of a command: ssh, srun, or a command that enters a namespace."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dynamix_ps import own_process
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.agent import HEARTBEAT_S, LEASE_S, hello
from dynamix_ps.launch.host.parent import tied
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.messages.agent_messages import Alive, Decoder, FromAgent, Hello, Message, Prepared, ToAgent
from dynamix_ps.launch.messages.line_splitter import LineSplitter
from dynamix_ps.launch.messages.message_stream import MessageStream
from dynamix_ps.launch.targets.agent_link import AgentLink, Deliver

CONNECT_S = 30.0  # to the first message of an agent: ssh, and the start of Python there
_CLOSE_S = 3.0
_LAST_LINES = 5


Advice = Callable[[int, Sequence[str], bool], str]  # (exit code, last lines it has said, whether the agent has spoken)


def no_advice(exit_code: int, lines: Sequence[str], spoke: bool) -> str:
    """The advice about a command whose ends have no known causes: none."""
    return ""


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """A command that becomes the agent of a host, or reaches it: its standard streams are the agent's."""

    argv: tuple[str, ...]
    name: str = "its agent"  # what the command is, for messages
    environ: Mapping[str, str] | None = None  # of the command; none: that of this process
    shares_run_folder: bool = False  # the agent is on the launcher's machine
    advice: Advice = no_advice  # what to do about its end
    shell: tuple[
        str, ...
    ] = ()  # runs other commands there, if a name of the host and a command follow; or nothing does


_AGENT = "dynamix_ps.launch.host.agent"


def agent_argv(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What runs on a host: the launcher's Python, whose path there is the same, with the paths of its PYTHONPATH.

    Start it in `/`: Python imports from the folder in which it is started.
    """
    paths = [os.path.abspath(path) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables = ("env", f"PYTHONPATH={os.pathsep.join(paths)}") if paths else ()
    return (*variables, sys.executable, "-m", _AGENT)


AGENT = own_process.command(_AGENT)  # on this machine
ON_OWN_MACHINE = AgentCommand(AGENT, "the agent on this machine", shares_run_folder=True)


class Commands:
    """The target whose agents commands start: ssh, srun, or a command that enters a namespace.

    Args:
        command_of: the command for the name of a host.
        admit: what lets `command_of` know a host that the cluster file does not name; see `Target`. By default it knows
            all names.
    """

    def __init__(self, command_of: Callable[[str], AgentCommand], admit: Callable[[str], None] | None = None) -> None:
        self.command_of, self._admit = command_of, admit

    def connect(self, host: str, selector: selectors.BaseSelector, deliver: Deliver) -> AgentLink:
        return CommandLink(host, self.command_of(host), selector, deliver)

    def admit(self, host: str) -> None:
        if self._admit is not None:
            self._admit(host)


class CommandLink:
    """An agent at the other end of a command's standard streams."""

    def __init__(self, host: str, command: AgentCommand, selector: selectors.BaseSelector, deliver: Deliver) -> None:
        """Raises EnvironmentNotReady if the command cannot be started."""
        self._host, self._command, self._deliver, self._selector = host, command, deliver, selector
        self.shares_run_folder = command.shares_run_folder
        self.lost = ""
        self._greeted = self._ready = self._closed = False
        self._began_s = self._heard_s = self._said_s = time.monotonic()
        self._early: list[ToAgent] = []  # nothing is sent before the agent has spoken
        self._errors: deque[str] = deque(maxlen=_LAST_LINES)
        self._splitter = LineSplitter()
        try:
            self._process = subprocess.Popen(
                # An ssh whose link is cut does not notice the end of its input.
                tied(command.argv, signal.SIGTERM),
                env=None if command.environ is None else dict(command.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the launcher, which tells the agents
            )
        except OSError as error:
            raise EnvironmentNotReady(f"host {host}: cannot run {command.argv[0]}: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._decoder = Decoder(greeting=True)
        self._stream = MessageStream(
            selector,
            self._process.stdout.fileno(),
            self._process.stdin.fileno(),
            self._receive,
            self._stream_ended,
            self._decoder,
        )
        self._stderr = self._process.stderr
        os.set_blocking(self._stderr.fileno(), False)
        selector.register(self._stderr, selectors.EVENT_READ, self._read_errors)

    @property
    def has_room(self) -> bool:
        return self._greeted and self._stream.has_room

    def send(self, message: ToAgent) -> None:
        if self._greeted:
            self._stream.send(message)
        else:
            self._early.append(message)

    def tick(self) -> None:
        now_s = time.monotonic()
        if self.lost or self._closed:
            return
        if not self._greeted:
            if now_s - self._began_s > CONNECT_S:
                self._lose(f"{self._command.name} has not answered for {CONNECT_S:g} s")
            return
        if now_s - self._said_s >= HEARTBEAT_S:
            self._said_s = now_s
            self._stream.send(Alive())
        if self._ready and now_s - self._heard_s > LEASE_S:  # it says nothing while it gets ready
            self._lose(f"nothing has come from it for {LEASE_S:g} s: a cut link, a frozen host or one that is gone")

    def leave(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._left_s = time.monotonic()
        self._stream.close()
        if self._stderr in self._selector.get_map():
            self._selector.unregister(self._stderr)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()  # the agent ends at that

    def close(self) -> None:
        self.leave()
        try:
            self._process.wait(max(0.0, self._left_s + _CLOSE_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # the command; a cut agent ends by its lease
            self._process.wait()
        for pipe in (self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def _receive(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        if isinstance(message, Hello):
            self._greet(message)
        elif isinstance(message, FromAgent):
            self._ready |= isinstance(message, Prepared)
            self._deliver(self._host, message)
        else:
            self._lose(f"its agent sent {type(message).__name__}, which is for agents")

    def _greet(self, message: Hello) -> None:
        ours = hello()
        if (message.protocol, message.version) != (ours.protocol, ours.version):
            self._lose(
                f"it has version {message.version} of this package (protocol {message.protocol}), the launcher has "
                f"{ours.version} (protocol {ours.protocol}); install one version on all hosts"
            )
            return
        self._greeted = True
        for early in self._early:
            self._stream.send(early)
        self._early.clear()
        self._deliver(self._host, message)

    def _read_errors(self) -> None:
        try:
            data = os.read(self._stderr.fileno(), 1 << 16)
        except BlockingIOError:
            return
        self._errors.extend(line for line in self._splitter.feed(data, final=not data) if line.strip())
        if not data and self._stderr in self._selector.get_map():
            self._selector.unregister(self._stderr)

    def _stream_ended(self, reason: str) -> None:
        if reason:
            self._lose(reason)
            return
        try:
            exit_code = self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._lose(f"{self._command.name} has closed the stream")
            return
        if self._stderr in self._selector.get_map():
            self._read_errors()
        advice = self._command.advice(exit_code, self._errors, self._greeted)
        self._lose(f"{self._command.name} {how_it_ended(exit_code)}", advice)

    def _lose(self, reason: str, advice: str = "") -> None:
        said = [*self._decoder.greeting.decode(errors="replace").splitlines()[-2:]] if not self._greeted else []
        words = "; ".join([*said, *self._errors])
        self.lost = self.lost or f"{reason}{words and f' ({words})'}{advice and f'; {advice}'}"
