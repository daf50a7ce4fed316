"""How far training is, by the lines of the worker that leads: evaluations, pauses, the time to go, gradient noise."""

from __future__ import annotations

import math
from collections import deque

from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.run_record.evaluations import Evaluation, evaluation_of
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.values import number
from dynamix_ps.run_record.worker_states import WorkerStates

PROGRESS_KEPT = 30  # windows from which the time to go is estimated (chosen by us)


class ProgressState:
    """Built from the lines of `workers`."""

    def __init__(self, workers: WorkerStates) -> None:
        self._workers = workers
        self.evaluations: list[Evaluation] = []
        self.noise = SmoothedNoise()  # of the gradient
        self.epoch = math.nan  # newest: passes over the data
        self.loss = math.nan  # newest: of training, over all workers
        self.lr_guard = 1.0  # newest: what the guard leaves of the learning rate
        self.rollbacks: list[int] = []  # iterations in which the guard of the learning rate took the weights back
        self.wires: list[tuple[int, str, str]] = []  # with `wire: auto`: first iteration of each, its name, and why
        self._trained: deque[tuple[float, float]] = deque(maxlen=PROGRESS_KEPT)  # (Unix time, trained ratio)
        self._paused_from_s: float | None = None  # Unix time, of the pause at hand
        self._pauses_s = 0.0  # those that are over

    def paused_s(self, now_s: float) -> float:
        """Seconds of pauses (evaluations, checkpoints) until `now_s` (Unix time)."""
        return self._pauses_s + (0.0 if self._paused_from_s is None else max(now_s - self._paused_from_s, 0.0))

    @property
    def trained_ratio(self) -> float | None:
        """The part of the training that is complete, 0..1; None where the script names no end."""
        return self._trained[-1][1] if self._trained else None

    @property
    def time_to_go_s(self) -> float | None:
        """Seconds from the newest window to the end, at the pace of the last windows, pauses included.

        None while it is not known, and when all workers have finished.
        """
        if len(self._trained) < 2 or all(worker.train_s is not None for worker in self._workers.there):
            return None
        (began_s, ratio_before), (newest_s, ratio_now) = self._trained[0], self._trained[-1]
        gained = ratio_now - ratio_before
        return (newest_s - began_s) * (1 - ratio_now) / gained if gained > 0 else None

    def window(self, line: Line) -> None:
        if not self._workers.leads(line):
            return
        noise = GradientNoise(number(line.get("noise_variance")), number(line.get("noise_signal")))
        self.noise.update(noise, number(line.get("grad_sq_global")))
        self.epoch, self.loss = number(line.get("epoch")), number(line.get("global_loss"))
        if not math.isnan(left := number(line.get("lr_guard"))):
            self.lr_guard = left
        if not math.isnan(trained := number(line.get("trained_ratio"))):
            self._trained.append((line["time_s"], trained))

    def rollback(self, line: Line) -> None:
        if self._workers.leads(line):
            self.rollbacks.append(line["iteration"])

    def wire_changed(self, line: Line) -> None:
        self.wires.append((line["iteration"], line["wire"], line["reason"]))

    def paused(self, line: Line) -> None:
        if self._workers.leads(line):
            self._paused_from_s = line["time_s"]

    def resumed(self, line: Line) -> None:
        if self._workers.leads(line):
            self._pauses_s = self.paused_s(line["time_s"])
            self._paused_from_s = None

    def evaluation(self, line: Line) -> None:
        """Times of evaluations count from the start of training on rank 0, whose clock stamps them."""
        began_s = self._workers[0].started_s
        self._workers.of(line).iteration = line["iteration"]
        self.evaluations.append(evaluation_of(line, line["time_s"] if began_s is None else began_s))
