"""The arbitrator's Prometheus endpoint: the newest closed window over HTTP, on the loopback unless told otherwise."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dynamix_ps.addresses import host_port
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.report.exposition import COUNTERS, GAUGES, PREFIX, Labels, Sample, gauges, growth
from dynamix_ps.report.http_server import HttpServer, Request, Response

DECISION_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class Exporter:
    """Call `start` once and `observe` for every closed window, from one thread; HTTP is served from another."""

    def __init__(self, config: Config, run_name: str) -> None:
        """`run_name` becomes the label `run` of every series."""
        self._host, self._port = config.metrics.prometheus_host, config.metrics.prometheus_port
        self._registry = CollectorRegistry(auto_describe=False)
        self._newest = _Newest(run_name)
        self._registry.register(self._newest)
        decisions = Histogram(
            f"{PREFIX}decision_seconds",
            "Time from a closed window to its decision",
            ["run"],
            registry=self._registry,
            buckets=DECISION_BUCKETS_S,
        )
        self._decisions = decisions.labels(run_name)
        self._server: HttpServer | None = None
        self._encode, self._content_type = choose_encoder("")  # the plain text format, which every scraper reads
        self._changes = 0
        self._encoded: tuple[int, bytes] = (-1, b"")  # the page, and the number of changes it includes

    def start(self) -> str | None:
        """Begin to serve; returns the URL, or None when metrics.prometheus_port is null.

        Raises:
            EnvironmentNotReady: the address is taken or is not of this machine. Nothing else needs the endpoint, so
                the caller goes on without it and says so.
        """
        if self._port is None:
            return None
        try:
            self._server = HttpServer(self._host, self._port, self._answer)
        except OSError as error:
            raise EnvironmentNotReady(
                f"no endpoint at {host_port(self._host, self._port)}: {error.strerror or error}; "
                "set metrics.prometheus_port to a free port, to 0 for any, or to null for none"
            ) from error
        return f"http://{host_port(self._host, self._server.port)}/metrics"

    def observe(self, view: View, decision: Decision, decision_s: float | None = None) -> None:
        """Take in a closed window, what was decided, and how long that took if it is known."""
        self._newest.observe(view, decision)
        if decision_s is not None:
            self._decisions.observe(decision_s)
        self._changes += 1

    def degraded(self, what: str) -> None:
        """Count something that worked less well than asked for."""
        self._newest.count([Sample(f"{PREFIX}degraded", (("what", what),), 1.0)])
        self._changes += 1

    def members(self, workers: int, servers: int) -> None:
        """So many take part in an elastic job from now on."""
        self._newest.members = tuple(
            Sample(f"{PREFIX}members", (("role", role),), float(count))
            for role, count in (("worker", workers), ("server", servers))
        )
        self._changes += 1

    def lost(self, role: str) -> None:
        """An elastic job goes on without a worker or a server."""
        self._newest.count([Sample(f"{PREFIX}lost", (("role", role),), 1.0)])
        self._changes += 1

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._server = None

    def _answer(self, request: Request) -> Response:
        if request.path not in ("/metrics", "/"):
            return Response("text/plain", b"# the metrics are at /metrics\n", "404 Not Found")
        return Response(self._content_type, self._page())

    def _page(self) -> bytes:
        """The metrics as text, encoded once per change: scrapes without pause take no time from the decisions."""
        changes = self._changes
        if self._encoded[0] != changes:
            self._encoded = (changes, self._encode(self._registry))
        return self._encoded[1]


class _Newest(Collector):
    """Gauges of the newest window alone, so that none stays behind when its value becomes unknown; counters of all.

    Attributes:
        members: gauges that belong to no window.
    """

    def __init__(self, run_name: str) -> None:
        self._run = run_name
        self._lock = threading.Lock()
        self._gauges: tuple[Sample, ...] = ()
        self.members: tuple[Sample, ...] = ()
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._version: int | None = None
        self._noise = SmoothedNoise()

    def observe(self, view: View, decision: Decision) -> None:
        grown = [Sample(f"{PREFIX}windows", (), 1.0)]
        grown.append(Sample(f"{PREFIX}safety_net_windows", (), float(decision.fallback)))
        grown.append(Sample(f"{PREFIX}safety_net", (), float(decision.fallback and bool(decision.note))))
        if self._version is not None and view.plan.version > self._version:
            grown.append(Sample(f"{PREFIX}plans", (), float(view.plan.version - self._version)))
        self._version = view.plan.version
        for record in view.reported:
            grown.extend(growth(record))
        self.count(grown)
        for record in view.reported[:1]:  # the same on every worker
            self._noise.update(GradientNoise(record.noise_variance, record.noise_signal), record.grad_sq_global)
        self._gauges = tuple(
            gauges(view, decision.reward, self._noise.value.scale)
        )  # one assignment: a scrape sees one window whole

    def count(self, grown: Iterable[Sample]) -> None:
        with self._lock:
            for name, labels, value in grown:
                self._counts[name, labels] += value

    def collect(self) -> Iterable[Metric]:
        """Called by a scrape, in the thread of the HTTP server."""
        with self._lock:
            counted = [Sample(name, labels, value) for (name, labels), value in self._counts.items()]
        yield from self._families(GaugeMetricFamily, GAUGES, (*self._gauges, *self.members))
        yield from self._families(CounterMetricFamily, COUNTERS, counted)

    def _families(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        texts: dict[str, str],
        samples: Iterable[Sample],
    ) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, labels, value in samples:
            if name not in families:
                families[name] = kind(name, texts[name], labels=["run", *(label for label, _ in labels)])
            families[name].add_metric([self._run, *(text for _, text in labels)], value)
        return families.values()
