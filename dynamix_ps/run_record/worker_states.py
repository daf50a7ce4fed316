"""The workers of a run so far, from their own lines. Updated by `RunState`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from dynamix_ps.messages import NetworkSample, SystemSample
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.losses import MembershipHistory
from dynamix_ps.run_record.model import ABSENT, STOPPED, TIME_PARTS, Mean, WorkerState
from dynamix_ps.run_record.values import filled, known_sum, number, ratio


class WorkerStates(dict[int, WorkerState]):
    """All workers by rank. Arguments: see `RunState`; `membership` knows who is lost and who has left."""

    def __init__(
        self, n_workers: int, hosts: Sequence[str], later: Collection[int], membership: MembershipHistory
    ) -> None:
        super().__init__((rank, WorkerState(rank)) for rank in range(n_workers))
        for rank, host in enumerate(hosts):
            self[rank].host = host
        for rank in later:
            self[rank].phase = ABSENT
        self._membership = membership

    @property
    def by_host(self) -> list[WorkerState]:
        """Host by host, in the order of their lowest ranks."""
        first: dict[str, int] = {}
        for rank in sorted(self):
            first.setdefault(self[rank].host, rank)
        return [self[rank] for rank in sorted(self, key=lambda rank: (first[self[rank].host], rank))]

    @property
    def there(self) -> list[WorkerState]:
        """The workers that have come, and are neither lost nor have left."""
        gone = self._membership.lost("worker") | self._membership.left
        return [worker for rank, worker in self.items() if rank not in gone and worker.phase != ABSENT]

    @property
    def iteration(self) -> int:
        return max((worker.iteration for worker in self.values()), default=0)

    @property
    def global_batch(self) -> int | None:
        sizes = [worker.batch_size for worker in self.there]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def samples_per_s(self) -> float:
        """Of all workers together, in their newest windows; NaN while nothing is known."""
        return known_sum(worker.samples_per_s for worker in self.there)

    def leads(self, line: Line) -> bool:
        """Whether a line is of the worker that tells what is the same on all: the first that is there."""
        return bool(line["rank"] == min((worker.rank for worker in self.there), default=0))

    def of(self, line: Line) -> WorkerState:
        """The worker that a line is about."""
        return self[line["rank"]]

    def started(self, line: Line) -> None:
        worker = self.of(line)
        worker.phase, worker.error = "running", None
        worker.comm, worker.comm_version = line["comm"], line["comm_version"]
        worker.iteration = max(worker.iteration, line["iteration"])
        if worker.started_s is None:
            worker.started_s = line["time_s"]
            worker.first_batch_size = line["batch_size"]
        worker.batch_size = line["batch_size"]

    def window(self, line: Line) -> None:
        worker = self.of(line)
        worker.phase = "running"
        worker.batch_size = line["batch_size"]
        worker.iteration = line["first_iteration"] + line["iterations"]
        worker.last_s = line["time_s"]
        worker.loss, worker.accuracy = number(line["loss"]), number(line["accuracy"])
        worker.summed_bytes_per_s = number(line.get("summed_bytes_per_s"))
        worker.network, worker.system = filled(NetworkSample, line), filled(SystemSample, line)
        worker.sources[worker.network.network_source] += 1
        for name, value in (
            ("summed_bytes_per_s", worker.summed_bytes_per_s),
            ("units_per_s", ratio(number(line.get("units")), number(line["duration_s"]))),
            ("rtt_s", worker.network.rtt_s),
            ("throttled", worker.system.throttled),
            ("cpu_share", ratio(worker.system.cpu_ratio, worker.system.cpu_cores)),
        ):
            worker.means.setdefault(name, Mean()).add(value, number(line["duration_s"]))
        worker.windows += 1
        worker.samples += line["samples"]
        seconds = {part: number(line[f"{part}_s"]) for part in TIME_PARTS} | {"duration": number(line["duration_s"])}
        duration = seconds["duration"]
        if duration > 0:
            worker.samples_per_s = line["samples"] / duration
            worker.shares = {part: seconds[part] / duration for part in TIME_PARTS}
        for part, value in seconds.items():
            worker.totals[part] = worker.totals.get(part, 0.0) + (0.0 if math.isnan(value) else value)

    def compiled(self, line: Line) -> None:
        worker = self.of(line)
        worker.graphs += line["graphs"]
        worker.later_graphs += line["later"]

    def finished(self, line: Line) -> None:
        worker = self.of(line)
        worker.phase = "finished"
        worker.iteration, worker.samples, worker.train_s = line["iterations"], int(line["samples"]), line["train_s"]

    def terminated(self, line: Line) -> None:
        worker = self.of(line)
        worker.phase, worker.iteration = STOPPED, max(worker.iteration, line["iteration"])

    def failed(self, line: Line) -> None:
        worker = self.of(line)
        worker.phase, worker.error = "failed", str(line["error"])

    def lease(self, line: Line, before: str, after: str) -> None:
        """The lease of a worker is lost, or back."""
        if (worker := self.of(line)).phase == before:
            worker.phase = after
