"""How pages and pictures speak of what a workload is judged by. Its values come from `CellResult.value`."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workloads.goal import MetricName
from dynamix_ps.run_record.evaluations import higher_is_better


@dataclass(frozen=True, slots=True)
class Metric:
    """Values are shown as `scale` times what they are."""

    name: MetricName
    title: str  # of a column or an axis
    target: str  # in words; {} is its number
    threshold: str  # likewise, in short
    form: str = "{:.3f}"
    scale: float = 1.0
    room: float = 1.0  # that pictures show on the bad side of the first threshold, in shown values
    above: str = "above"  # heads a column of differences

    @property
    def higher_is_better(self) -> bool:
        return bool(higher_is_better(self.name))

    def in_words(self, value: float) -> str:
        """A target, as in `87 % test accuracy`."""
        return self.target.format(f"{self.scale * value:g}")

    def in_short(self, value: float) -> str:
        """A threshold, as in `87 %`."""
        return self.threshold.format(f"{self.scale * value:g}")


_ALL = (
    Metric("accuracy", "accuracy (%)", "{} % test accuracy", "{} %", "{:.2f}", 100, 15, "points above"),
    Metric("loss", "loss", "a test loss of {}", "loss {}"),
    Metric("bpb", "bits per byte", "{} bits per byte of the test text", "{} bits per byte"),
)
METRICS: dict[MetricName, Metric] = {metric.name: metric for metric in _ALL}
