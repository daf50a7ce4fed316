"""Records and shows the run while the roles run, and finds out which workers have started."""

from __future__ import annotations

import time

from dynamix_ps.launch.job.shown_output import PrefixedOutput
from dynamix_ps.launch.job.verdict import RunProgress
from dynamix_ps.launch.job.watch_events import WatchEvents
from dynamix_ps.launch.roles.placement import Placement, Speeds
from dynamix_ps.report.live.view import LiveView
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.run_record.iteration_mark import read_mark
from dynamix_ps.run_record.model import WorkerState

REFRESH_S = 0.5


class Observer:
    """The supervisor calls it. A full disk never ends the run; `problem` says that the record is incomplete."""

    def __init__(
        self,
        recorder: Recorder,
        live: LiveView,
        speeds: Speeds,
        placement: Placement,
        output: PrefixedOutput,
    ) -> None:
        self._recorder = recorder
        self._live = live
        self._speeds = speeds
        self._placement = placement
        self._output = output
        self._engaged_s: float | None = None
        self._watch = WatchEvents(recorder)
        self._refreshed_s = 0.0
        self.problem: str | None = None

    def __call__(self) -> RunProgress:
        """Take in news. Raises DynamixError when speeds or links cannot be set."""
        try:
            self._recorder.poll()
            self._watch.record()
        except OSError as error:
            self.problem = f"recording: {error.strerror or error}; part of the record is lost"
        self._output.tick()
        progress = self._progress()
        now_s = time.time()  # the clock of the workers' lines
        if self._engaged_s is None and len(progress.started) >= self._recorder.config.first_workers:
            # Not earlier: with a quota of a fifth of a core, the import of torch takes many seconds.
            self._speeds.change(())
            self._engaged_s = now_s
        if self._engaged_s is not None and not progress.finished:
            trained_s = now_s - self._engaged_s - self._recorder.state.progress.paused_s(now_s)
            self._placement.tick(max(trained_s, 0.0), self._speeds)
        if abs(now_s - self._refreshed_s) >= REFRESH_S:
            self._refreshed_s = now_s
            self._live.refresh()
        return progress

    def _progress(self) -> RunProgress:
        state = self._recorder.state
        workers = state.workers.values()
        return RunProgress(
            started=frozenset(worker.rank for worker in workers if worker.started_s is not None),
            finished=frozenset(worker.rank for worker in workers if worker.train_s is not None),
            errors={worker.rank: worker.error for worker in workers if worker.error},
            iterations={worker.rank: self._iteration(worker) for worker in workers},
            founded=state.membership.founded,
            finishing=state.membership.finishing,
            lost=state.membership.lost("worker"),
            servers_away=frozenset(f"server-{number}" for number in state.membership.lost("server")),
            lost_servers=frozenset(
                (f"server-{number}", incarnation)
                for (role, number), incarnation in state.membership.incarnations
                if role == "server"
            ),
            left=state.membership.left,
        )

    def _iteration(self, worker: WorkerState) -> int:
        """The iteration of a worker, also within a window; its lines have it only at the end of a window."""
        return max(read_mark(self._recorder.folder.iteration_file(worker.rank)) or 0, worker.iteration)
