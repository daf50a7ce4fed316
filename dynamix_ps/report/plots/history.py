"""A whole run as series over time, for the plots. Times are seconds since the first worker began to train."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from dynamix_ps.config.schema import Config
from dynamix_ps.messages import WINDOW, LinkView, ServerView
from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.run_record.evaluations import Evaluation, MetricCurve, curves, evaluation_of
from dynamix_ps.run_record.json_lines import UNUSABLE, Line
from dynamix_ps.run_record.model import TIME_PARTS, by_worker
from dynamix_ps.run_record.role_files import RoleFiles, RoleLine
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.values import filled, number, ratio

MEASURED = tuple(field.name for field in WINDOW.values() if field.kind is float)


@dataclass(slots=True)
class WorkerSeries:
    """One worker: batch sizes as steps, and every window's time by part, per sample that all workers trained in it.

    Per iteration, a run whose global batch grows would look as if it slowed down.
    """

    rank: int
    batch_s: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    window_s: list[float] = field(default_factory=list)  # end of the window
    window_plan: list[int] = field(default_factory=list)  # plan in force at its end
    window_mixed: list[bool] = field(default_factory=list)  # a switch or a stall lies inside
    part_us: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in TIME_PARTS})
    windows: list[int] = field(default_factory=list)  # their numbers
    samples: list[float] = field(default_factory=list)  # that it trained in the window
    global_samples: list[float] = field(default_factory=list)  # that all workers trained in it
    global_batch: list[float] = field(default_factory=list)  # of an iteration over all workers, mean
    measured: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEASURED})
    sources: list[str] = field(default_factory=list)  # of the network values

    def add_size(self, at_s: float, size: int) -> None:
        """From this time on it has this size, until a later one of those that are known."""
        place = bisect_right(self.batch_s, at_s)
        self.batch_s.insert(place, at_s)
        self.batch_sizes.insert(place, size)


@dataclass(slots=True)
class ServerSeries:
    """A server or the scheduler, at the end of every window."""

    time_s: list[float] = field(default_factory=list)
    cpu_percent: list[float] = field(default_factory=list)  # of the cores it may use


@dataclass(slots=True)
class History:
    """What the plots show."""

    title: str
    workers: dict[int, WorkerSeries]
    evaluations: list[Evaluation]
    plan_s: list[float]  # when a new plan came into force
    target_accuracy: float | None
    end_s: float
    links: dict[tuple[int, int], LinkView] = field(default_factory=dict)  # by rank and window
    servers: dict[str, ServerSeries] = field(default_factory=dict)
    noise_s: list[float] = field(default_factory=list)
    noise_scale: list[float] = field(default_factory=list)  # smoothed, in `counted`
    counted: str = "samples"  # what sizes are in: samples or tokens

    @property
    def one(self) -> str:
        """A sample or a token."""
        return self.counted.removesuffix("s")

    @property
    def main_metric(self) -> MetricCurve | None:
        """What the pictures show of the evaluations: the accuracy, or what was recorded first; none: nothing was."""
        return next(iter(curves(self.evaluations).values()), None)

    @property
    def network_sources(self) -> str:
        """`ebpf`, or who used what where that differs; `none` where nothing was measured."""
        return by_worker({rank: " then ".join(dict.fromkeys(one.sources)) for rank, one in self.workers.items()})


@dataclass(slots=True)
class _OfAll:
    """What all workers tell alike: the line of the first one that was there counts. And who has gone."""

    plan_s: dict[int, float] = field(default_factory=dict)  # by version
    noise: dict[int, tuple[float, GradientNoise, float]] = field(default_factory=dict)  # by window; with |g|^2
    gone: list[tuple[int, float]] = field(default_factory=list)  # rank, and when it was lost or left


def read_history(folder: RunFolder, config: Config) -> History:
    """Read the run folder; whatever is missing is empty."""
    return history_of(folder, config, RoleFiles(folder).read())


def history_of(folder: RunFolder, config: Config, lines: Iterable[RoleLine]) -> History:
    """From the lines of all roles; those of each role in the order in which it wrote them."""
    told = [told for told in lines if "time_s" in told.line]
    of_workers = [line for _, file, line in told if file.parent == folder.workers_dir]
    starts = [line["time_s"] for line in of_workers if line["kind"] == "started"]
    began = min(starts or (line["time_s"] for line in of_workers), default=0.0)
    title = f"{folder.path.name}, policy {config.policy.name}"
    history = History(title, {}, [], [], config.target_accuracy, 0.0, counted=config.batch.counted)
    of_all = _OfAll()
    for source, file, line in told:
        elapsed = max(line["time_s"] - began, 0.0)
        try:
            if file.parent == folder.workers_dir:
                history.end_s = max(history.end_s, elapsed)
                _add(history, of_all, line, elapsed)
            elif source == "arbitrator" and line["kind"] == "links":
                _add_links(history, line, elapsed)
            elif source == "arbitrator" and line["kind"] == "lost" and line["role"] == "worker":
                of_all.gone.append((line["slot"], elapsed))
        except UNUSABLE:
            continue  # the recorder has put it into events.jsonl as unreadable_line
    _complete(history, of_all)
    return history


def _add(history: History, of_all: _OfAll, line: Line, elapsed: float) -> None:
    worker = history.workers.setdefault(line["rank"], WorkerSeries(line["rank"]))
    if line["kind"] == "started":
        worker.add_size(elapsed, line["batch_size"])
    elif line["kind"] == "plan_applied":
        worker.add_size(elapsed, line["batch_sizes"][worker.rank])
        of_all.plan_s.setdefault(line["version"], elapsed)
    elif line["kind"] == "window":
        _add_window(worker, line, elapsed)
        fresh = GradientNoise(number(line.get("noise_variance")), number(line.get("noise_signal")))
        of_all.noise.setdefault(line["window"], (elapsed, fresh, number(line.get("grad_sq_global"))))
    elif line["kind"] == "evaluation":
        history.evaluations.append(evaluation_of(line, line["time_s"] - elapsed))
    elif line["kind"] == "worker_left":
        of_all.gone.append((worker.rank, elapsed))


def _complete(history: History, of_all: _OfAll) -> None:
    """What needs the lines of all workers. A worker that has gone has no samples until it comes back."""
    for rank, gone_s in of_all.gone:
        if rank in history.workers:
            history.workers[rank].add_size(gone_s, 0)
    history.workers = dict(sorted(history.workers.items()))
    history.servers = dict(sorted(history.servers.items()))
    history.evaluations.sort(key=lambda one: one.elapsed_s)
    history.plan_s = sorted(of_all.plan_s.values())
    noise = SmoothedNoise()
    for _, (elapsed, fresh, grad_sq) in sorted(of_all.noise.items()):
        history.noise_scale.append(noise.update(fresh, grad_sq).scale)
        history.noise_s.append(elapsed)


def _add_window(worker: WorkerSeries, line: Line, elapsed: float) -> None:
    times = {part: 1e6 * ratio(number(line[f"{part}_s"]), line["global_samples"]) for part in TIME_PARTS}
    measured = {name: number(line.get(name)) for name in MEASURED}
    number_of, plan, total = line["window"], line["plan_version"], line["global_samples"] / line["iterations"]
    samples, global_samples = number(line["samples"]), number(line["global_samples"])
    if worker.batch_sizes and line["batch_size"] != worker.batch_sizes[-1]:  # without a plan: others came or went
        worker.add_size(max(elapsed - number(line["duration_s"]), worker.batch_s[-1]), line["batch_size"])
    worker.windows.append(number_of)
    worker.samples.append(samples)
    worker.global_samples.append(global_samples)
    worker.window_plan.append(plan)
    worker.window_mixed.append(bool(line.get("flagged")))
    worker.window_s.append(elapsed)
    worker.global_batch.append(total)
    worker.sources.append(line.get("network_source", "none"))
    for part, microseconds in times.items():
        worker.part_us[part].append(microseconds)
    for name, value in measured.items():
        worker.measured[name].append(value)


def _add_links(history: History, line: Line, elapsed: float) -> None:
    for link in (filled(LinkView, link) for link in line["links"]):
        history.links[link.rank, line["window"]] = link
    for view in (filled(ServerView, server) for server in line["servers"]):
        server = history.servers.setdefault(view.name, ServerSeries())
        server.cpu_percent.append(100 * ratio(view.system.cpu_ratio, view.system.cpu_cores))
        server.time_s.append(elapsed)
