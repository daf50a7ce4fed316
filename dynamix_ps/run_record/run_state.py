"""The state of a run so far: which part takes in which line of the workers and of the arbitrator's journal."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Sequence

from dynamix_ps.messages import Flow, LinkView, ServerView, SystemSample
from dynamix_ps.run_record.arbitrator_state import ArbitratorState
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.losses import MembershipHistory
from dynamix_ps.run_record.model import Degradations
from dynamix_ps.run_record.progress_state import ProgressState
from dynamix_ps.run_record.resumption import Resumption
from dynamix_ps.run_record.traffic import TrafficLedger
from dynamix_ps.run_record.values import filled, known_sum, number
from dynamix_ps.run_record.worker_states import WorkerStates

EVENTS_KEPT = 50
# How roles come and go. When the launcher ends the job, all of them end, which is no story to tell.
_COMINGS_AND_GOINGS = frozenset(
    {"lost", "members", "short", "short_of_workers", "finishing", "lease_lost", "role_ended", "scheduler_exit"}
    | {"worker_left", "workers_entered", "servers_entered"}
)


class RunState:
    """Updated by every line. `later`: workers that are not there when the job begins. `run`, `policy`, `counted`
    (samples or tokens) and `hosts` (of each worker by its rank, if the job names hosts) are for the live view; all else
    comes from the lines."""

    def __init__(
        self,
        n_workers: int,
        run: str = "run",
        policy: str = "-",
        counted: str = "samples",
        hosts: Sequence[str] = (),
        later: Collection[int] = (),
    ) -> None:
        self.run, self.policy, self.counted = run, policy, counted
        self.membership = MembershipHistory()
        self.workers = WorkerStates(n_workers, hosts, later, self.membership)
        self.arbitrator = ArbitratorState(self.workers)
        self.progress = ProgressState(self.workers)
        self.servers: dict[str, ServerView] = {}  # newest, by name; the scheduler too
        self.traffic = TrafficLedger()
        self.resumption = Resumption()
        self.degradations = Degradations()
        self.events: deque[Line] = deque(maxlen=EVENTS_KEPT)
        self.n_events = 0
        self.restart: str | None = None  # with which a job that was lost as a whole has begun again
        self._is_stopping = False  # the launcher ends an elastic job

    @property
    def serving(self) -> list[ServerView]:
        """The servers that are not lost, and the scheduler, by name."""
        lost = {f"server-{number}" for number in self.membership.lost("server")}
        return [server for name, server in sorted(self.servers.items()) if name not in lost]

    def apply(self, source: str, line: Line) -> None:
        """Take in one line. Raises what `UNUSABLE` names if it does not have what its kind needs."""
        kind = line["kind"]
        if self._is_stopping and kind in _COMINGS_AND_GOINGS:
            return
        if handler := (_JOURNAL if source == "arbitrator" else _ROLES).get(kind):
            handler(self, line)
        if kind == "degraded":
            self.degradations.add(line["what"], line.get("detail"), source)
        elif kind == "recovered":
            self.degradations.recovered(line["what"], source)

    def note(self, event: Line) -> None:
        """Keep an event for the live view."""
        self.events.append(event)
        self.n_events += 1

    def _window(self, line: Line) -> None:
        self.workers.window(line)
        self.progress.window(line)

    def _went_on(self, line: Line) -> None:
        self.resumption.went_on(line)
        self.workers.of(line).iteration = line["iteration"]

    def _stopping(self, line: Line) -> None:
        self._is_stopping = True

    def _stall(self, line: Line) -> None:
        worker = self.workers.of(line)
        servers = line.get("missing_servers", [])
        worker.phase = f"waits for {', '.join([*map(str, line['missing']), *servers]) or 'unknown'}"
        names = ", ".join([*(f"worker {rank}" for rank in line["missing"]), *servers]) or "an unknown role"
        self.degradations.add("stall", f"iteration {line['iteration']} waited for {names}", f"worker-{worker.rank}")

    def _role(self, line: Line) -> None:
        """A report of connections and machine. The rates of a server are in the arbitrator's next `links` line."""
        flows = [filled(Flow, flow) for flow in line["flows"]]
        self.traffic.add(line["name"], line["rank"], flows)
        if line["role"] == "worker":
            return
        before = self.servers.get(line["name"], ServerView(line["name"]))
        self.servers[before.name] = dataclasses.replace(
            before,
            unread_bytes=known_sum(flow.unread_bytes for flow in flows),
            unsent_bytes=known_sum(flow.unsent_bytes for flow in flows),
            system=filled(SystemSample, line["system"]),
            source=line["network_source"],
            age_s=number(line["network_age_s"]),
        )

    def _links(self, line: Line) -> None:
        """Both sides of every worker's connections, joined by the arbitrator when a window closed."""
        for link in (filled(LinkView, link) for link in line["links"]):
            self.workers[link.rank].link = link
        for server in (filled(ServerView, server) for server in line["servers"]):
            self.servers[server.name] = server

    def _job_restarted(self, line: Line) -> None:
        self.restart = f"restart {line['restarts']} of the job, from {line['checkpoint']}"

    def _lost(self, line: Line) -> None:
        lost = line["role"], line["slot"]
        self.membership.known(lost, line["time_s"], line["reason"], line.get("incarnation", ""))
        if line["role"] == "worker":
            self.workers[line["slot"]].go("lost")

    def _worker_left(self, line: Line) -> None:
        worker = self.workers.of(line)
        worker.go("left")
        worker.iteration = line["iteration"]
        self.membership.departed(worker.rank, line["iteration"], line["workers"])

    def _workers_entered(self, line: Line) -> None:
        self.membership.entered(line["entered"], line["iteration"], line["workers"])
        for rank in line["entered"]:
            self.workers[rank].phase = "running"

    def _host_joined(self, line: Line) -> None:
        for rank in line["workers"]:
            self.workers[rank].host = line["host"]

    def _members(self, line: Line) -> None:
        self.membership.changed({"worker": len(line["workers"]), "server": len(line["servers"])}, line["took_s"])

    def _short_of_workers(self, line: Line) -> None:
        self.membership.too_few = "{workers} are left, elastic.min_workers is {min_workers}".format(**line)

    def _finishing(self, line: Line) -> None:
        self.membership.finishing = True


_Handler = Callable[[RunState, Line], None]
_ROLES: dict[str, _Handler] = {
    "started": lambda state, line: state.workers.started(line),
    "window": RunState._window,
    "compiled": lambda state, line: state.workers.compiled(line),
    "stall": RunState._stall,
    "finished": lambda state, line: state.workers.finished(line),
    "terminated": lambda state, line: state.workers.terminated(line),
    "failed": lambda state, line: state.workers.failed(line),
    "plan_applied": lambda state, line: state.arbitrator.plan_applied(line),
    "rollback": lambda state, line: state.progress.rollback(line),
    "wire_changed": lambda state, line: state.progress.wire_changed(line),
    "paused": lambda state, line: state.progress.paused(line),
    "resumed": lambda state, line: state.progress.resumed(line),
    "evaluation": lambda state, line: state.progress.evaluation(line),
    "launch": lambda state, line: state.resumption.launched(line),
    "went_on": RunState._went_on,
    "saved": lambda state, line: state.resumption.was_saved(line),
    "role": RunState._role,
    "short": lambda state, line: state.membership.short(line["iteration"], line["missing"]),
    "role_ended": lambda state, line: state.membership.ended((line["role"], line["slot"]), line["ended_s"]),
    "scheduler_exit": lambda state, line: state.membership.scheduler(line["how"], line["restart_in_s"]),
    "worker_left": RunState._worker_left,
    "workers_entered": RunState._workers_entered,
    "servers_entered": lambda state, line: state.membership.servers_entered(line["entered"], line["iteration"]),
    "host_joined": RunState._host_joined,
    "job_restarted": RunState._job_restarted,
    "stopping": RunState._stopping,
}
_JOURNAL: dict[str, _Handler] = {
    "started": lambda state, line: state.arbitrator.started(line),
    "plan": lambda state, line: state.arbitrator.plan(line),
    "observed": lambda state, line: state.arbitrator.plan_observed(line),
    "kept": lambda state, line: state.arbitrator.kept(line),
    "fallback": lambda state, line: state.arbitrator.fell_back(line),
    "prometheus": lambda state, line: state.arbitrator.serves_prometheus(line),
    "links": RunState._links,
    "lost": RunState._lost,
    "members": RunState._members,
    "short_of_workers": RunState._short_of_workers,
    "finishing": RunState._finishing,
    "lease_lost": lambda state, line: state.workers.lease(line, "running", "silent"),
    "lease_back": lambda state, line: state.workers.lease(line, "silent", "running"),
}
