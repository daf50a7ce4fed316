"""Several hosts on one machine: network namespaces joined by links with a rate and a loss. See docs/testbed.md."""

from benchmarks.testbed.bed import Bed, Counters, permitted
from benchmarks.testbed.commands import BedError
from benchmarks.testbed.link import Link

__all__ = ["Bed", "BedError", "Counters", "Link", "permitted"]
